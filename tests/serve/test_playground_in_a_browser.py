"""The playground as people meet it: a real browser, real samples."""

import base64
import io
import json
import re

import pytest
from PIL import Image

from atoll.runs.components import Members, write_members
from atoll.serve.app import create_app
from atoll.serve.models import Model, open_models
from atoll.serve.server import PAGES
from atoll.serve.view import View
from tests.browser import needs_browser
from tests.playing import browsing, check, keep, listening, visiting
from tests.serving import served

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server of a run with two experts that are told classes, and of what passes for a student."""
    run = served(tmp_path_factory.mktemp("served") / "run", "class", steps=12)
    model = next(iter(open_models(run.path).values()))
    student = Model("run/student", model.sampler, model.contents)
    app = create_app(
        {model.name: model, student.name: student},
        pages=PAGES,
    )
    app.state.view = View(run)
    with listening(app) as url:
        yield url


def pixels(image):
    """What a picture shows, out of its address; what else its file says may differ."""
    data = image.get_attribute("src").partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(data))) as opened:
        return opened.tobytes()


def picture(page, panel=0):
    """The pixels of the first picture of a panel."""
    return pixels(page.locator(".panel").nth(panel).locator(".picture img").first)


def made(page, panels=1):
    page.wait_for_function(
        f"() => document.querySelectorAll('.panel .links a').length >= {panels} && "
        f"document.querySelectorAll('.panel').length === {panels} && "
        f"![...document.querySelectorAll('.panel progress')].some((one) => !one.hidden)"
    )


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_make_a_picture_and_see_who_made_it(browser, site, width, scheme):
    with visiting(browser, site, width, scheme) as visit:
        page = visit.page
        made(page)
        page.get_by_label("class").select_option("bag")
        page.get_by_label("seed").fill("7")
        page.get_by_role("button", name="Make").click()
        made(page)
        page.wait_for_function("() => document.querySelector('.panel figcaption').textContent === 'bag'")
        assert "seed=7" in page.url and "class=bag" in page.url
        shares = page.locator(".expert").all_text_contents()
        numbers = [float(re.fullmatch(r"expert \d\s+([\d.]+) %", text)[1]) for text in shares]
        assert len(numbers) == 2 and sum(numbers) == pytest.approx(100, abs=0.2)
        assert page.locator("#weights polygon").count() == 2, "the strategy is full: both have a weight"
        assert "Made bag in" in page.locator("#spoken").text_content()
        check(visit)
        keep(visit, f"playground-{width}")


@pytest.mark.thorough
def test_a_download_says_what_it_is(browser, site, tmp_path):
    from PIL import Image

    with visiting(browser, f"{site}/?class=shirt&seed=3&steps=5&strategy=top-1") as visit:
        made(visit.page)
        with visit.page.expect_download() as download:
            visit.page.get_by_role("link", name="download").click()
        download.value.save_as(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert image.size == (8, 8)
        about = image.info
        assert (about["seed"], about["class"], about["steps"]) == ("3", "shirt", "5")
        assert about["strategy"] == "top-1"


@pytest.mark.thorough
def test_switch_an_expert_off_with_the_keyboard(browser, site):
    with visiting(browser, f"{site}/?class=boot&seed=1") as visit:
        page = visit.page
        made(page)
        page.locator(".expert").first.focus()
        page.keyboard.press("Enter")
        made(page, 2)
        assert page.locator(".panel figcaption").nth(1).text_content() == "boot, without expert 0"
        assert picture(page, 0) != picture(page, 1)
        assert "experts=1" in page.url
        switched = page.locator(".expert").first
        assert switched.get_attribute("aria-pressed") == "false"
        assert page.evaluate("() => document.activeElement.dataset.expert") == "0", "the focus stays"
        check(visit)
        switched.press("Enter")
        made(page, 1)
        assert "experts" not in page.url


@pytest.mark.thorough
def test_a_part_that_was_dropped_is_not_offered(browser, finished):
    write_members(finished.path, Members(dropped=(1,)))
    app = create_app(open_models(finished.path, steps=2), pages=PAGES)
    with listening(app) as url, visiting(browser, url) as visit:
        page = visit.page
        made(page)
        assert page.get_by_text("2 experts, each trained alone").count() == 1
        assert [text[:8] for text in page.locator(".expert").all_text_contents()] == ["expert 0", "expert 2"]
        page.locator(".expert").first.click()
        made(page, 2)
        assert "experts=2" in page.url
        check(visit)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.thorough
def test_ask_who_would_make_it(browser, site, width):
    with visiting(browser, f"{site}/?class=boot&seed=1&count=4", width) as visit:
        page = visit.page
        made(page)
        page.get_by_role("button", name="Trace it").click()
        page.wait_for_selector("#traced tbody tr")
        rows = page.locator("#traced tbody tr").all_text_contents()
        numbers = [float(re.match(r"expert \d([\d.]+) %", text)[1]) for text in rows]
        assert len(numbers) == 2 and sum(numbers) == pytest.approx(100, abs=0.2)
        assert "not whose work is in it" in page.locator("#traced").text_content()
        check(visit)
        keep(visit, f"traced-{width}")
        page.locator(".picture").nth(2).click()
        assert page.locator("#traced").is_hidden(), "it was said of another sample"


@pytest.mark.thorough
def test_compare_strategies_and_models_from_the_same_noise(browser, site):
    with visiting(browser, f"{site}/?class=boot&seed=1") as visit:
        page = visit.page
        made(page)
        full = picture(page)
        page.get_by_role("button", name="Compare strategies").click()
        made(page, 3)
        titles = page.locator(".panel figcaption").all_text_contents()
        assert titles == ["full", "top-1", "ancestral"]
        assert picture(page, 0) == full, "the same seed by the same strategy"
        assert picture(page, 1) != full
        assert all(
            re.match(r"[\d.]+ s, ", text) for text in page.locator(".panel .facts").all_text_contents()
        )
        check(visit)
        page.get_by_role("button", name="Compare models").click()
        made(page, 2)
        assert page.locator(".panel figcaption").all_text_contents() == ["run", "run/student"]
        assert picture(page, 0) == picture(page, 1), "here they are the same network"


@pytest.mark.thorough
def test_a_permalink_makes_the_same_picture_again(browser, site):
    with visiting(browser, f"{site}/?class=bag&seed=11&count=4&strategy=ancestral&steps=7") as visit:
        page = visit.page
        made(page)
        page.locator(".picture").nth(2).click()
        assert page.locator(".picture").nth(2).get_attribute("aria-pressed") == "true"
        third = pixels(page.locator(".picture img").nth(2))
        link = page.get_by_role("link", name="permalink").get_attribute("href")
    with visiting(browser, f"{site}{link}") as visit:
        made(visit.page)
        assert "seed=13" in visit.page.url
        assert picture(visit.page) == third
        assert visit.page.locator(".picture").count() == 1


@pytest.mark.thorough
def test_what_was_made_is_remembered(browser, site):
    with visiting(browser, f"{site}/?class=bag&seed=1") as visit:
        page = visit.page
        made(page)
        page.get_by_role("button", name="Another seed").click()
        page.wait_for_function("() => document.querySelectorAll('#history a').length === 2")
        before = page.locator("#history a").nth(1).get_attribute("href")
        page.locator("#history a").nth(1).click()
        made(page)
        assert page.url.endswith(before)
        page.get_by_role("button", name="Forget these").click()
        assert page.locator("#history a").count() == 0


def test_a_refusal_is_told(browser, site):
    with visiting(browser, f"{site}/?class=bag&seed=1&strategy=top-7") as visit:
        visit.page.wait_for_selector("#problem:not([hidden])")
        assert "asks more experts than serve" in visit.page.locator("#problem").text_content()


@pytest.mark.thorough
def test_a_token_is_asked_for_and_kept(browser, tmp_path):
    model = next(iter(open_models(served(tmp_path / "run").path).values()))
    app = create_app({model.name: model}, token="correct horse", pages=PAGES)
    with listening(app) as url, visiting(browser, url) as visit:
        visit.page.get_by_label("This server asks for a token").fill("correct horse")
        visit.page.get_by_role("button", name="Enter").click()
        made(visit.page)


@pytest.mark.thorough
def test_a_series_is_a_curve_that_can_be_heard(browser, tmp_path):
    run = served(tmp_path / "run", shape=(1, 32))
    with (
        listening(create_app(open_models(run.path), pages=PAGES)) as url,
        visiting(browser, f"{url}/?seed=2", 390) as visit,
    ):
        page = visit.page
        page.wait_for_function("() => document.querySelectorAll('.picture .plot canvas').length === 1")
        with page.expect_download() as download:
            page.get_by_role("link", name="numbers").click()
        download.value.save_as(tmp_path / "numbers.json")
        assert len(json.loads((tmp_path / "numbers.json").read_text())["values"][0]) == 32
        page.get_by_role("button", name="listen").click()
        page.wait_for_function("() => document.querySelector('audio')?.duration === 32 / 16000")
        check(visit)


@pytest.mark.thorough
def test_the_live_view_is_a_tab(browser, site):
    with visiting(browser, site) as visit:
        visit.page.get_by_role("link", name="Live").click()
        visit.page.wait_for_selector(".stages")
        assert visit.page.get_by_role("link", name="Playground").count() == 1
