import re

import pytest

from atoll.evaluate import credit as room
from atoll.evaluate import neighbours
from atoll.pages import credit, report
from atoll.runs import CREDIT, read_stamped, write_json
from atoll.sampling import gallery, sample
from atoll.sampling.makers import SENTENCE
from tests.browser import chromium, look, needs_browser
from tests.evaluate.test_credit import QUICK


@pytest.fixture
def valued(finished):
    run = finished.changed(QUICK)
    return run, room.value(run)


def test_the_page_tells_every_part_and_what_it_is_not_for(valued):
    run, record = valued
    path = credit.write_credit(run, record)
    page = path.read_text(encoding="utf-8")
    assert path == run.path / "credit" / "credit.html"
    for part in record["parts"]:
        assert f"{part['value']['value']:.3g}" in page
        assert part["part"] in page
    assert "samples of training, which flatters the experts" in page
    for title in ("time", "class", "cluster"):
        assert f"values by {title}" in page
    assert "must not be used for" in page
    assert record["commitment"][:16] in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page), "it stands alone"


def test_redundancy_is_in_per_cent_of_the_largest_part():
    assert credit._scaled([[4.0, 1.0], [1.0, 2.0]]) == [[100.0, 25.0], [25.0, 50.0]]
    assert credit._scaled([[0.0]]) == [[0.0]]


@pytest.fixture
def traced(finished, tmp_path):
    run = finished.changed(QUICK)
    sample.sample(finished, tmp_path / "out", own=True, num=1)
    picture = tmp_path / "out" / gallery.picture_name(0)
    return run, picture, room.trace_file(run, picture)


def test_the_page_of_a_picture_shows_it_and_its_nearest_by_part(traced):
    run, picture, facts = traced
    page = credit.write_traced(run, picture, facts).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1 + 3
    assert facts["sentence"] in page
    for part in facts["nearest"]:
        assert part[0]["id"][:12] in page


def test_without_the_data_there_are_ids_alone_or_nothing(traced, monkeypatch):
    run, picture, facts = traced
    monkeypatch.setattr(neighbours, "by_id", lambda run, ids: {})
    page = credit.write_traced(run, picture, facts).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert facts["nearest"][0][0]["id"][:12] in page
    bare = credit.write_traced(run, picture, {**facts, "nearest": None}).read_text(encoding="utf-8")
    assert "which are not at hand here" in bare


def test_the_report_has_values_of_these_networks_alone(valued, tmp_path):
    run, record = valued
    sample.sample(run, tmp_path / "s")
    page = report.write_report(run, tmp_path / "s").read_text(encoding="utf-8")
    assert "What each expert is worth" in page
    assert f"{record['parts'][1]['value']['value']:.3g}" in page
    write_json(run.path / CREDIT, {**read_stamped(run.path / CREDIT), "networks": "others"})
    page = report.write_report(run, tmp_path / "s").read_text(encoding="utf-8")
    assert "What each expert is worth" not in page


def test_the_runs_own_samples_are_shown_with_who_made_them_and_who_would(finished):
    run = finished.changed(QUICK)
    sample.sample(run, run.samples.path, own=True, num=3)
    record = room.value(run)
    for path in (credit.write_credit(run, record), report.write_report(run, run.samples.path)):
        page = path.read_text(encoding="utf-8")
        assert "Whose samples" in page
        assert SENTENCE in page
        for one in record["samples"]:
            assert f"made by expert {one['made_by']}" in page
            assert one["nearest"][one["expert"]][0]["id"][:12] in page


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.thorough
def test_a_browser_has_nothing_to_complain_about(valued, traced, tmp_path, width):
    pages = [credit.write_credit(*valued), credit.write_traced(*traced)]
    for path, pictures, drawings in zip(pages, (0, 4), (2, 1), strict=True):
        seen = look(chromium(), path, width, tmp_path)
        assert seen.complaints == []
        assert (seen.pictures, seen.broken, seen.drawings) == (pictures, 0, drawings)
        assert seen.sticks_out <= 0
        assert seen.cut == 0


def test_the_likeliest_part_comes_first():
    assert credit._likeliest_first([0.1, 0.7, 0.2]) == [(1, 0.7), (2, 0.2), (0, 0.1)]
