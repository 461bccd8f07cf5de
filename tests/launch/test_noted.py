"""Every change of state is written down once, with what one would want to know of it."""

from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.launch.noted import Noted
from atoll.runs import Run, read_lines

SPEC = JobSpec("expert 0", "{}", "nowhere")


def test_changes_become_events_once(tmp_path, prepared):
    run: Run = prepared()
    shown = []
    noted = Noted(run, lambda jobs: shown.append([job.state for job in jobs]))
    one, two = (JobStatus(Job(f"expert {k}", SPEC, tmp_path / f"{k}")) for k in range(2))
    noted([one, two])
    one.running, one.resumed = True, 30
    noted([one, two])
    noted([one, two])
    two.running = True
    one.code, two.code, two.words = 0, 1, "the loss is not finite"
    noted([one, two])
    lines = [
        {key: value for key, value in line.items() if key != "time"}
        for line in read_lines(run.path / "events.jsonl")
    ]
    assert lines == [
        {"event": "began", "stage": "expert 0", "step": 30},
        {"event": "done", "stage": "expert 0"},
        {"event": "failed", "stage": "expert 1", "problem": "the loss is not finite"},
    ]
    assert shown == [["waiting", "waiting"]] + [["training", "waiting"]] * 2 + [["done", "failed"]]
