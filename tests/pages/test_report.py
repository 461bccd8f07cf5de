import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from atoll.config import SampleConfig, validate
from atoll.pages import measured, report
from atoll.plan import strategy_costs
from atoll.runs import EVALUATION, Run, write_json
from atoll.runs.known import known
from atoll.sampling import sample
from atoll.train import student
from tests.browser import chromium, look, needs_browser
from tests.conftest import linked
from tests.pages.test_measured import row, rows


@pytest.fixture(scope="module")
def page(_tiny_finished, tmp_path_factory):
    """Of a finished run, drawn once."""
    folder = tmp_path_factory.mktemp("page")
    run = linked(_tiny_finished, folder / "finished")
    sample.sample(run, folder / "samples")
    return report.write_report(run, folder / "samples").read_text(encoding="utf-8")


def test_the_page_stands_alone(page):
    """Nothing is fetched from anywhere: no address of the web but the names of SVG's own vocabulary."""
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_every_picture_is_whole(page):
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 1 + 3  # the grid and one gallery per cluster
    for text in pictures:
        Image.open(io.BytesIO(base64.b64decode(text))).verify()


def test_it_says_what_happened(page, finished):
    sizes = finished.partition.contents.sizes
    for size in sizes:
        assert f"{size:,} samples" in page
    assert "expert 2" in page
    assert "velocity loss" in page
    assert "cross-entropy" in page
    assert "source = &#34;fashion-5k&#34;" in page
    assert "5,000 pictures of 1 x 28 x 28, uint8 · " in page
    assert "duplicates: none" in page


def test_it_says_where_samples_enter(page, finished, monkeypatch, tmp_path):
    assert "entered at" not in page
    monkeypatch.setattr(report, "entered_at", lambda run: 0.7)
    sample.sample(finished, tmp_path / "samples")
    assert "entered at t = 0.7" in report.write_report(finished, tmp_path / "samples").read_text("utf-8")


def test_it_says_what_strategies_cost(page, finished):
    costs = strategy_costs(finished.config, known(finished.partition.contents))
    for name, cost in costs.items():
        assert f"{cost['flops_per_sample']:.3g}" in page, name
    assert "(taken above)" in page


def test_it_shows_what_was_measured(finished, tmp_path):
    """Numbers of an evaluation stand in the table of strategies and in one of their own."""
    sample.sample(finished, tmp_path / "s")
    number = {"value": 12.345, "low": 11.0, "high": 13.5, "num": 100}
    floor = {"frechet": 0.321, "kernel": 0.1, "precision": 0.9, "recall": 0.8, "num": 100}
    space = dict.fromkeys(("frechet", "kernel", "precision", "recall"), number)
    row = {
        "num": 100,
        "sample": SampleConfig().model_dump(mode="json"),
        "features": {"classifier": {**space, "floor": floor, "distance": "Fréchet distance, classifier"}},
        "strategy": "top-1",
        "copies": {**number, "value": 0.0, "floor": 0.01},
        "clusters": {"divergence": {**number, "value": 0.0456}, "floor": 0.0067},
        "disagreement": {**number, "value": 0.0789},
    }
    times = {"t": 0.05, "intervals": {"accuracy": [0.7, 0.9]}}
    times |= dict.fromkeys(measured.BY_TIME, 0.8)
    other = {**row, "strategy": "full", "copies": {**number, "value": 0.5, "floor": 0.01}}
    found = {"measured": {"top-1": row, "full": other}, "routing": {"num": 321, "times": [times]}}
    (finished.path / "evaluation").mkdir()
    (finished.path / "evaluation" / "evaluation.json").write_text(json.dumps(found))
    page = report.write_report(finished, tmp_path / "s").read_text(encoding="utf-8")
    for text in ("12.3", "11 to 13.5", "0.321", "0.0456", "0.0067", "Fréchet distance, classifier"):
        assert text in page, text
    assert "0.800 ± 0.100" in page
    assert "321 real samples" in page
    table = page[page.index("How near the data") :]
    assert table.count("divergence of clusters") == 1  # a row for each number, a column for each strategy
    assert table.index('<th class="n">top-1') < table.index('<th class="n">full') < table.index("floor</th>")


def test_shares_are_compared_with_what_was_asked_for(finished):
    """Two classes asked for in turn, one in both clusters alike and one in the first alone: 3/4 and 1/4."""
    counts = {"sizes": (90, 10), "labels": ((10, 80, 0), (10, 0, 0)), "class_names": ("a", "b", "c")}
    contents = finished.partition.contents.model_copy(update=counts)
    shares, of = report.expected_shares(contents, {"class": ["a", "b", "a", "b"]})
    assert shares == [0.75, 0.25]
    assert of == "of what was asked for"
    assert report.expected_shares(contents, {}) == ([0.9, 0.1], "of the data")
    unlabelled = contents.model_copy(update={"labels": None})
    assert report.expected_shares(unlabelled, {"class": ["a"]})[0] == [0.9, 0.1]


def test_columns_are_named():
    assert report.columns_of({"class": ["a", "b", "a", "b"]}) == ["a", "b"]
    assert report.columns_of({"prompt": ["a", "b", "a"]}) == ["a", "b"]
    assert report.columns_of({"class": ["a", "b"]}) == []  # one of each: the grid is about square
    assert report.columns_of({}) == []


def test_it_says_what_the_data_were_taken_for(page):
    assert "What the data were taken for" in page
    assert "5,000, image, 1 x 28 x 28" in page
    assert "10: " in page


def test_the_router_is_shown_against_the_time(page):
    assert "probability of the own cluster" in page
    assert page.count("<svg") == 4  # losses of experts and router, the posterior twice


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_finds_every_picture_and_nothing_to_complain_about(finished, tmp_path, width):
    sample.sample(finished, tmp_path / "s")
    times = {"t": 0.05, "intervals": {"accuracy": [0.7, 0.9]}, **dict.fromkeys(measured.BY_TIME, 0.8)}
    several = rows(row("top-1", steps=10), row("full", steps=20, guidance=2.0))
    measured_rows = {name: one.model_dump(mode="json") for name, one in several.items()}
    tree = {"measured": measured_rows, "routing": {"num": 3, "times": [times]}}
    write_json(finished.path / EVALUATION, tree)
    path = report.write_report(finished, tmp_path / "s")
    seen = look(chromium(), path, width, tmp_path)
    assert seen.complaints == []
    assert seen.pictures == 4
    assert seen.broken == 0
    assert seen.drawings == 4
    assert seen.sticks_out <= 0
    assert seen.cut == 0


@needs_browser
def test_the_browser_sees_what_is_broken(tmp_path):
    """The test above can fail: a picture that is none, a script that throws, a table that is too wide."""
    path = tmp_path / "broken.html"
    path.write_text(
        "<!doctype html><title>x</title><img src='data:image/png;base64,AAAA'>"
        "<div style='width: 3000px'>wide</div><script>throw new Error('broken on purpose')</script>"
    )
    seen = look(chromium(), path, 390, tmp_path)
    assert seen.broken == 1
    assert any("broken on purpose" in line for line in seen.complaints)
    assert seen.sticks_out > 2000


def test_tags_are_closed(page):
    class Balance(HTMLParser):
        void = frozenset({"meta", "img", "br", "link"})
        stack: list[str]

        def handle_starttag(self, tag, attrs):
            if tag not in self.void:
                self.stack.append(tag)

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag

        def handle_startendtag(self, tag, attrs):
            pass

    parser = Balance()
    parser.stack = []
    parser.feed(page)
    assert parser.stack == []


def test_a_recipe_cannot_put_markup_into_the_page(finished, tmp_path):
    sample.sample(finished, tmp_path / "s")
    (finished.path / "run.toml").unlink()
    (finished.path / "run.toml").write_text("# <script>alert(1)</script>")
    assert "<script" not in report.write_report(finished, tmp_path / "s").read_text(encoding="utf-8")


def test_students_are_told_of(taught, tmp_path):
    run = taught(steps=2)
    student.dense(run)
    sample.sample(run, tmp_path / "samples")
    page = report.write_report(run, tmp_path / "samples").read_text(encoding="utf-8")
    assert "2 steps, in student/" in page
    assert "students in black" in page


def test_a_run_without_its_samples_has_a_page_too(finished, tmp_path):
    """As where it lives in a store: experts and router were fetched, clusters were not."""
    run = Run.open(
        Path(shutil.copytree(finished.path, tmp_path / "run"))
    )  # the fixture's clusters are everybody's
    sample.sample(run, tmp_path / "s")
    with_them = report.write_report(run, tmp_path / "s").read_text(encoding="utf-8")
    next(run.cluster(1).path.glob("*.parquet")).unlink()
    without = report.write_report(run, tmp_path / "s").read_text(encoding="utf-8")
    assert "probability of the own cluster" in with_them
    assert "probability of the own cluster" not in without


def test_a_common_start_is_told_and_counted(finished):
    """Ten steps of eight for each of three experts; a start of four steps of five saw all of the data."""
    tree = finished.config.model_dump()
    numbers = {what: value for value, what in report._numbers(finished)}
    assert numbers["training samples in all"] == "240"
    start = {"steps": 4, "batch": 5}
    begun = Run(finished.path, validate({**tree, "start": start}, "a test"))
    numbers = {what: value for value, what in report._numbers(begun)}
    assert numbers["training samples in all"] == "260"
