import json
import logging

from rich.console import Console

from atoll.launch import table
from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.launch.remaining import Remaining
from tests.clocks import ManualClock

SPEC = JobSpec("expert 0", "{}", "nowhere")
LINE = {"step": 40, "loss": 0.25, "samples_per_second": 5.0}


def job(tmp_path, name, code, *lines):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return JobStatus(Job(name, SPEC, folder, steps=100, batch=10), started=True, running=True, code=code)


def shown(*jobs):
    console = Console(width=120, record=True)
    console.print(table.table(jobs, Remaining().look(jobs)))
    return console.export_text()


def last_row(*jobs):
    return " ".join(shown(*jobs).splitlines()[-1].split())


def spoken(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_table_says_step_loss_rate_and_time_left(tmp_path):
    running = job(tmp_path, "expert 0", None, LINE)
    text = shown(running, JobStatus(Job("expert 1", SPEC, tmp_path / "no", 100, 10)))
    first, second, last = text.splitlines()[1:]
    assert first.split() == ["expert", "0", "training", "40/100", "0.2500", "5", "0:02:00"]  # 60 * 10 / 5
    assert second.split() == ["expert", "1", "waiting", "0/100"]
    # one at a time: 120 seconds, then 100 steps of 10 samples at the same rate
    assert last.split() == ["all", "0", "of", "2", "jobs", "done", "5", "0:05:20"]


def test_the_table_says_where_a_job_goes_on_from(tmp_path):
    running = job(tmp_path, "expert 0", None, LINE)
    running.resumed = 30
    assert "training, resumed from step 30" in shown(running)
    running.code = 0
    assert "resumed" not in shown(running)


def test_no_time_is_left_where_none_is_known_or_needed(tmp_path):
    assert last_row(job(tmp_path, "a", None)) == "all 0 of 1 jobs done"
    ended = job(tmp_path, "b", 0, LINE), job(tmp_path, "c", 1)
    assert last_row(*ended) == "all 1 of 2 jobs done, 1 failed"


def test_states(tmp_path):
    states = [job(tmp_path, str(code), code).state for code in (None, 0, 1)]
    assert states == ["training", "done", "failed"]


def test_plain_lines_tell_changes_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    lines = table.Lines(ManualClock().now)
    running, other = job(tmp_path, "expert 0", None), job(tmp_path, "expert 1", None)
    other.resumed = 263
    for _ in range(2):
        lines([running, other])
    running.code = 0
    lines([running, other])
    assert spoken(caplog) == [
        "expert 0: training",
        "expert 1: training, resumed from step 263",
        "expert 0: done",
    ]


def test_plain_lines_tell_news_of_jobs_and_always_how_far_all_are(tmp_path, caplog):
    """A job that has taken all its steps may be judging for long; that is not told again and again."""
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    lines = table.Lines(clock.now)
    jobs = [job(tmp_path, "expert 0", None, {**LINE, "step": 100}), job(tmp_path, "expert 1", 0, LINE)]
    jobs.append(JobStatus(Job("expert 2", SPEC, tmp_path / "no", 100, 10)))
    lines(jobs)
    caplog.clear()
    for _ in range(60):
        clock.sleep(1)
        lines(jobs)
    whole = "all: 1 of 3 jobs done, 5 samples/s, 0:03:20 left"  # 1000 samples at 5 a second
    assert spoken(caplog) == [
        "expert 0: step 100/100, loss 0.2500, 5 samples/s, 0:00:00 left",
        *[whole] * (60 // table.LINE_SECONDS),
    ]
    assert table.LINE_SECONDS <= 30
