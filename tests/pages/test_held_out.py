"""The table of held-out losses: the last of every job, beside what it lost on its own samples."""

import json
import shutil

import pytest

from atoll.pages import held_out, report
from atoll.runs import Run
from atoll.sampling import sample


@pytest.fixture
def measured(finished: Run) -> Run:
    """A finished run, one of whose experts measured twice."""
    folder = finished.path / "experts"
    source = folder.resolve()
    folder.unlink()
    shutil.copytree(source, folder)
    lines = [
        {"step": 2, "time": 1.0, "loss": 0.9, "holdout": 0.95, "holdout_t0.00": 0.8, "holdout_t0.75": 1.1},
        {"step": 4, "time": 2.0, "loss": 0.5, "holdout": 0.625, "holdout_t0.00": 0.5, "holdout_t0.75": 0.75},
        {"step": 6, "time": 3.0, "loss": 0.4},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (finished.expert(1).path / "metrics.jsonl").write_text(text)
    return finished


def test_the_last_of_each_job(measured):
    table = held_out.table(measured)
    assert table["head"] == ["job", "trained on", "held out", "held out, t from 0", "held out, t from 0.75"]
    assert table["body"] == [["expert 1", "0.5000", "0.6250", "0.5000", "0.7500"]]


def test_nothing_where_nothing_was_measured(finished):
    assert held_out.table(finished) is None


def test_it_is_on_the_page(measured, tmp_path):
    sample.sample(measured, tmp_path / "s")
    page = report.write_report(measured, tmp_path / "s").read_text(encoding="utf-8")
    assert "held-out loss by time" in page
    assert "0.6250" in page
