import json
import logging

from rich.console import Console

from atoll.launch import table
from atoll.launch.job import Job, JobSpec, JobStatus

SPEC = JobSpec("expert 0", "{}", "nowhere")


def job(tmp_path, name, code, *lines):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return JobStatus(Job(name, SPEC, folder, steps=100, batch=10), started=True, running=True, code=code)


def test_the_table_says_step_loss_rate_and_time_left(tmp_path):
    line = {"step": 40, "loss": 0.25, "samples_per_second": 5.0}
    running = job(tmp_path, "expert 0", None, line)
    console = Console(width=100, record=True)
    console.print(table.table([running, JobStatus(Job("expert 1", SPEC, tmp_path / "no", 100, 10))]))
    text = console.export_text()
    assert "40/100" in text
    assert "0.2500" in text
    assert "0:02:00" in text  # 60 steps of 10 samples at 5 a second
    assert "waiting" in text


def test_states(tmp_path):
    states = [job(tmp_path, str(code), code).state for code in (None, 0, 1)]
    assert states == ["training", "done", "failed"]


def test_plain_lines_tell_changes_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    lines = table._Lines()
    running = job(tmp_path, "expert 0", None)
    lines([running])
    lines([running])
    running.code = 0
    lines([running])
    assert [record.getMessage() for record in caplog.records] == ["expert 0: training", "expert 0: done"]


def test_plain_lines_tell_news_only(tmp_path, caplog, monkeypatch):
    """A job that has taken all its steps may be judging for long; that is not told again and again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(table, "LINE_SECONDS", 0)
    lines = table._Lines()
    running = job(tmp_path, "expert 0", None, {"step": 100, "loss": 0.25, "samples_per_second": 5.0})
    for _ in range(3):
        lines([running])
    assert [record.getMessage() for record in caplog.records] == [
        "expert 0: training",
        "expert 0: step 100/100, loss 0.2500, 5 samples/s, 0:00:00 left",
    ]
