import json
from dataclasses import FrozenInstanceError

import pytest

from atoll.config import RunConfig
from atoll.errors import AtollError, Interrupted
from atoll.launch import job as room
from atoll.launch.job import Job, JobSpec, JobStatus


def spec(tmp_path, **changes):
    return JobSpec.of("expert 0", RunConfig(name="a", **changes), tmp_path)


def test_a_specification_never_changes(tmp_path):
    with pytest.raises(FrozenInstanceError):
        spec(tmp_path).stage = "router"
    assert spec(tmp_path) == spec(tmp_path)
    assert spec(tmp_path).digest == spec(tmp_path / "elsewhere").digest
    assert spec(tmp_path).digest != spec(tmp_path, seed=1).digest


def test_settings_travel_as_a_file_and_as_nothing_else(tmp_path):
    worker, path, folder, stage = spec(tmp_path, seed=3).arguments()
    assert (worker, folder, stage) == ("atoll.launch.work", str(tmp_path), "expert 0")
    assert room.read_settings(tmp_path / "resolved" / path.rsplit("/", 1)[-1]).seed == 3
    before = (tmp_path / "resolved").stat().st_mtime_ns
    spec(tmp_path, seed=3).arguments()
    assert (tmp_path / "resolved").stat().st_mtime_ns == before, "written once"


def status(tmp_path, name="expert 0", **facts):
    return JobStatus(Job(name, spec(tmp_path), tmp_path / name, metrics="**/metrics.jsonl"), **facts)


def test_a_state_in_a_word(tmp_path):
    assert status(tmp_path).state == "waiting"
    assert status(tmp_path, started=True).state == "waiting"
    assert status(tmp_path, started=True, running=True).state == "training"
    assert status(tmp_path, code=0).state == "done"
    assert status(tmp_path, code=75).state == "failed"


def test_a_job_that_begins_or_goes_on(tmp_path):
    one = status(tmp_path)
    one.begin()
    assert (one.started, one.resumed) == (True, 0)
    other = JobStatus(Job("expert 1", spec(tmp_path), tmp_path, saved_step=lambda: 263))
    assert other.resumed == 0, "nobody has looked yet"
    other.begin()
    assert (other.started, other.resumed) == (True, 263)


def test_progress_is_the_newest_line_with_all_steps(tmp_path):
    one = status(tmp_path)
    assert one.progress() == {}
    for folder, step, time in (("a", 5, 2.0), ("b", 3, 1.0)):
        (one.job.folder / folder).mkdir(parents=True)
        line = json.dumps({"step": step, "time": time, "loss": time})
        (one.job.folder / folder / "metrics.jsonl").write_text(line + "\n")
    assert one.progress() == {"step": 8, "time": 2.0, "loss": 2.0}


def test_how_jobs_end(tmp_path):
    room.report([status(tmp_path, code=0)])
    saved = status(tmp_path, "expert 1", code=75, words="stopped too often")
    with pytest.raises(Interrupted, match="expert 1 stopped and saved"):
        room.report([status(tmp_path, code=0), saved])
    with pytest.raises(AtollError, match="expert 1 failed: no memory"):
        room.report([saved, status(tmp_path, "expert 1", code=1, words="no memory")])
    silent = status(tmp_path, code=3)
    with pytest.raises(AtollError, match=r"expert 0 failed: exit code 3 \(log: .*expert 0\.log\)"):
        room.report([silent])
    silent.job.log.write_text("much\natoll: it broke\n")
    with pytest.raises(AtollError, match=r"expert 0 failed: it broke \(log"):
        room.report([silent])


def test_a_folder_that_goes_while_it_is_looked_at_stops_nobody(tmp_path, monkeypatch):
    """A training clears its states when it is done, while somebody looks how far it is."""
    folder = tmp_path / "expert 0"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 3, "time": 1.0}) + "\n")

    def walked(self, pattern):
        yield folder / "metrics.jsonl"
        raise FileNotFoundError(folder / "state")

    monkeypatch.setattr(type(tmp_path), "glob", walked)
    assert status(tmp_path).progress()["step"] == 3
