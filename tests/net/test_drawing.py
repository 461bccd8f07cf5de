"""The page of a run that strangers made: its host draws it, and nothing of theirs can harm it."""

import logging
import shutil

import pytest

from atoll.net import drawing, units
from atoll.runs import Run, graph

pytestmark = pytest.mark.usefixtures("sealed_are_forked")


@pytest.fixture
def run(recorded, tmp_path):
    run = Run(tmp_path / "run", recorded.run.config)
    shutil.copytree(recorded.run.path, run.path)
    return run


def test_it_is_no_work_for_strangers_and_is_drawn_once(run, recorded, tmp_path):
    assert not run.report.done and "report" not in {node.name for node in units.stages(run)}
    assert units.finished(recorded.network.run, recorded.table)
    drawing.draw(run, tmp_path / "keys")
    page = run.report.path / "report.html"
    assert run.report.current(graph.node(run, "report").made_from()) and "<html" in page.read_text()
    before = page.stat().st_mtime_ns
    drawing.draw(run, tmp_path / "keys")
    assert page.stat().st_mtime_ns == before


def test_what_cannot_be_drawn_is_told_in_a_line(run, tmp_path, caplog):
    """Also where what it would read is out of its reach, as the keys are."""
    with caplog.at_level(logging.WARNING, logger="atoll.net.drawing"):
        drawing.draw(run, run.samples.path)
    (line,) = caplog.messages
    assert line.startswith("the report was not drawn (") and line.endswith("`atoll run` draws it")
    assert "may not read the key" in line and not run.report.done
