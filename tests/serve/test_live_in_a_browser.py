"""The live view as people meet it: a real browser and a real training."""

import time

import pytest

from atoll.serve.view import View
from atoll.serve.watching import create_watch_app
from tests import commands
from tests.browser import needs_browser
from tests.playing import browsing, check, keep, listening, visiting
from tests.serve.test_view import NOW, measure

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with browsing() as opened:
        yield opened


TRAIN = """
import sys, time
from pathlib import Path
from atoll.runs import Metrics, Run, graph

gate, write = Path(sys.argv[2]), Metrics.write

def gated(self, step, **values):
    write(self, step, **values)
    while not gate.exists():
        time.sleep(0.02)

Metrics.write = gated
run = Run.open(Path(sys.argv[1]))
run.event("making", stages=[node.name for node in graph.made(run)])
for node in graph.made(run):
    if not node.stage.done:
        node.make()
run.event("finished")
"""
"""All stages of a run, one after the other; after its first line of metrics a job waits for the gate."""


@pytest.fixture
def training(prepared, tmp_path):
    """A real training of one expert that begins when it is started, and its gate."""
    run = prepared("partition.clusters=1", "expert.log_every=2", "expert.preview_every=5", name="seen")
    (run.path / "partition").unlink()  # of other clusters
    (tmp_path / "train.py").write_text(TRAIN)
    command = [tmp_path / "train.py", run.path, tmp_path / "gate"]
    started: list[commands.Command] = []

    def start():
        started.append(commands.Command(command, module="tests.program"))
        return started[0]

    yield run, start, tmp_path / "gate"
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.thorough
def test_watch_a_real_training_from_its_first_step_to_its_report(browser, training):
    run, start, gate = training
    with listening(create_watch_app(View(run))) as url, visiting(browser, url) as visit:
        page = visit.page
        row = page.locator(".stages tr", has_text="expert 0")
        assert "waiting" in row.text_content()
        process = start()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.stages tr')].some((row) => "
            "/expert 0\\s*training\\s*2 . 10/.test(row.textContent))"
        )
        gate.touch()
        page.wait_for_selector("a:has-text('Open the report')")
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        page.wait_for_function("() => document.querySelectorAll('#plot-loss canvas').length === 1")
        assert "10 / 10" in row.text_content() and "done" in row.text_content()
        page.wait_for_function("() => document.querySelectorAll('.preview img').length === 2")
        page.wait_for_selector("#events li:has-text('run finished')")
        check(visit)
        page.get_by_role("link", name="Open the report").click()
        page.wait_for_selector("h2:has-text('How they learnt')")


@pytest.mark.thorough
def test_long_runs_fit_a_small_window_in_the_dark(browser, prepared):
    run = prepared()
    for index in range(3):
        measure(
            run, index, *range(1, 9), ago=NOW - time.time(), gradient_norm=0.5, gpu_bytes=2e9, rate=1234.0
        )
    run.event("failed", stage="expert 2", problem="no space left on device " + "x" * 80)
    with listening(create_watch_app(View(run))) as url, visiting(browser, url, 390, "dark") as visit:
        visit.page.wait_for_function("() => document.querySelectorAll('#plot-gpu canvas').length === 1")
        check(visit)
        keep(visit, "watch-390-dark")
