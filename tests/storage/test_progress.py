"""Unfinished stages between machines that die, sleep and wake up again: no clock, only their order."""

import json
import shutil

import pytest

from atoll.config import RunConfig
from atoll.errors import StaleError
from atoll.runs import Run, file_digest, read_json, read_lines, write_json
from atoll.runs.records import Contents
from atoll.storage.leases import LeaseLost
from atoll.storage.mirror import Mirror
from atoll.storage.pointer import newest
from atoll.storage.progress import walk


class Worker:
    """A machine with one expert to train: a mirror, the lease of the stage, and its turn at it."""

    def __init__(self, folder, address, clock):
        run = Run(folder / "tiny", RunConfig(name="tiny"))
        run.path.mkdir(parents=True, exist_ok=True)
        self.mirror = Mirror(run, f"{address}/tiny", 30, clock)
        self.store, self.stage = self.mirror.store, run.expert(0)
        self.lease = self.attempt = None

    def acquire(self):
        self.lease = self.mirror.leases.acquire("experts/00")
        return self.lease is not None

    def begin(self):
        assert self.lease is not None or self.acquire()
        self.attempt = self.mirror.attempt(self.stage, self.lease.token)
        self.attempt.download()
        return self

    def train(self, step, text=None, keep=0, made_from="x"):
        """Leave a state as the training loop does."""
        self.stage.begin({"data": made_from})
        folder = self.stage.path / "state"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:08d}.safetensors"
        (folder / name).write_text(text or f"state {step}")
        entry = {"step": step, "file": name, "sha256": file_digest(folder / name)}
        older = self.states()[:keep]
        write_json(folder / "latest.json", {**entry, "older": older})
        for path in folder.glob("step-*"):
            if path.name not in {name, *(one["file"] for one in older)}:
                path.unlink()
        write_json(folder / "decisions.json", {"compile": False})
        (self.stage.path / "metrics.jsonl").write_text(
            "".join(f"{json.dumps({'step': one})}\n" for one in range(step))
        )
        return self

    def states(self):
        path = self.stage.path / "state" / "latest.json"
        if not path.is_file():
            return []
        pointer = read_json(path)
        older = pointer.pop("older", [])
        return [pointer, *older]

    def upload(self):
        self.attempt.upload()
        return self

    def step(self):
        """The step from which training would go on here, its state read."""
        states = self.states()
        if not states:
            return 0
        text = (self.stage.path / "state" / states[0]["file"]).read_text()
        assert text == f"state {states[0]['step']}"
        return states[0]["step"]

    def stored(self):
        return [name for name in self.store.names("experts/00") if name.endswith(".safetensors")]


@pytest.fixture(params=["s3", "folder"])
def worker(request, tmp_path, clock, monkeypatch):
    (tmp_path / "mounted").mkdir()
    address = (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )
    numbers = iter(range(1000))
    monkeypatch.setattr("atoll.storage.leases._space", lambda: f"machine {next(numbers)}")
    return lambda name: Worker(tmp_path / name, address, clock)


def take_over(heir, clock):
    """The heir sees nothing of the holder for as long as a lease lasts."""
    assert not heir.acquire()
    clock.time += heir.mirror.leases.seconds
    assert heir.acquire()
    return heir


def test_another_machine_goes_on_from_the_last_state(worker):
    a, b = worker("a").begin(), worker("b")
    for step in (3, 6):
        a.train(step).upload()
    assert len(a.stored()) == 1, "old states are removed"
    a.lease.release()
    b.begin()
    assert b.step() == 6
    assert read_json(b.stage.path / "state" / "decisions.json") == {"compile": False}
    assert len(read_lines(b.stage.path / "metrics.jsonl")) == 6
    assert b.stage.begin({"data": "x"})
    with pytest.raises(StaleError):
        b.stage.begin({"data": "y"})


def test_milestones_come_along(worker):
    a, b = worker("a").begin(), worker("b")
    a.train(3).train(6, keep=1).upload()
    a.lease.release()
    b.begin()
    assert [state["step"] for state in b.states()] == [6, 3]
    before = b.store.names("experts/00")
    b.train(9, keep=2).upload()
    assert [state.rpartition("/")[2][:13] for state in b.stored()] == [
        "step-00000003",
        "step-00000006",
        "step-00000009",
    ]
    assert {*before} - {*b.store.names("experts/00")} == set(), (
        "those of the last holder are kept, not sent again"
    )


def test_a_newer_state_of_the_same_attempt_is_kept(worker):
    a = worker("a").begin()
    a.train(3).upload()
    a.train(9)
    a.lease.release()
    a.acquire()
    a.begin()
    assert a.step() == 9


def test_a_state_that_vanishes_while_it_is_sent_is_left_for_next_time(worker):
    a = worker("a").begin()
    a.train(3)
    next((a.stage.path / "state").glob("step-*")).unlink()
    a.upload()
    assert a.stored() == [] and newest(a.store, "experts/00").states == ()


def test_who_lost_its_lease_cannot_move_the_pointer_back(worker, clock):
    a, b = worker("a").begin(), worker("b")
    a.train(6).upload()
    take_over(b, clock).begin()
    b.train(300).upload()
    a.train(9)
    with pytest.raises(LeaseLost, match="in other hands"):
        a.upload()
    assert newest(b.store, "experts/00").states[0].step == 300
    b.lease.release()
    c = worker("c").begin()
    assert c.step() == 300


def test_who_loses_its_lease_while_it_uploads_cannot_either(worker, clock, monkeypatch):
    """The check was passed; the heir is there before the pointer is written."""
    a, b, c = worker("a").begin(), worker("b"), worker("c")
    a.train(6).upload()
    upload = a.store.upload

    def slow(path, name):
        upload(path, name)
        take_over(b, clock).begin()
        b.train(300).upload()

    monkeypatch.setattr(a.store, "upload", slow)
    a.train(9).upload()
    assert newest(b.store, "experts/00").states[0].step == 300
    b.lease.release()
    assert c.begin().step() == 300


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_states_of_an_heir_are_never_removed(worker, clock, monkeypatch, moment):
    """The loser removes old states at the worst moment: before or after the heir has one of its own."""
    a, b, c = worker("a").begin(), worker("b"), worker("c")
    a.train(6).upload()
    delete = a.store.delete

    def late(names):
        names = list(names)
        take_over(b, clock).begin()
        if moment == "after":
            b.train(300).upload()
        delete(names)

    monkeypatch.setattr(a.store, "delete", late)
    a.train(9).upload()
    assert not take_over(c, clock).begin().step() < 9
    assert c.step() == (300 if moment == "after" else 9)


def test_an_heir_whose_state_is_removed_under_its_hands_takes_the_newer_one(worker, clock):
    """The heir has read the pointer to 6; then the loser writes one to 9 and removes 6."""
    a, b = worker("a").begin(), worker("b")
    a.train(6).upload()
    take_over(b, clock)
    b.attempt = b.mirror.attempt(b.stage, b.lease.token)
    a.attempt.check = lambda: None  # it looked a moment before
    a.train(9).upload()
    b.attempt.download()
    assert b.step() == 9
    assert newest(b.store, "experts/00").states[0].step == 9, "and that is what the next one is told"


def test_the_heir_tidies_up_after_the_dead(worker, clock):
    a, b = worker("a").begin(), worker("b")
    a.train(6).upload()
    take_over(b, clock).begin()
    assert len(b.stored()) == 1, "what it goes on from stays until there is a newer one"
    b.train(9).upload()
    assert ["step-00000009" in name for name in b.stored()] == [True]


def test_a_stage_that_was_started_over_does_not_go_on_from_an_old_state(worker, clock):
    """It diverged on A; started over with another rate it came to 300 on B, which was lost; A tries again."""
    a, b = worker("a").begin(), worker("b")
    a.train(500, text="diverged").upload()
    a.lease.release()
    b.mirror.clear(b.stage)
    b.begin()
    assert b.step() == 0
    b.train(300, made_from="another rate").upload()
    take_over(a, clock).begin()
    assert a.step() == 300
    assert a.stage.started == {"data": "another rate"}


def test_an_old_state_is_not_uploaded_either(worker, clock):
    """A has it still, finished or not, and nothing was trained since it was started over."""
    a, b = worker("a").begin(), worker("b")
    a.train(500, text="diverged")
    (a.stage.path / "weights.safetensors").write_text("diverged")
    a.stage.finish({"data": "x"}, ["weights.safetensors"], Contents())
    a.lease.release()
    b.mirror.clear(b.stage)
    a.acquire()
    a.begin()
    a.upload()
    assert a.step() == 0 and not a.stage.done
    assert a.stored() == []


def test_who_is_at_work_when_the_stage_is_started_over_loses_it(worker):
    a, b = worker("a").begin(), worker("b")
    a.train(6).upload()
    b.mirror.clear(b.stage)
    assert not a.lease.heartbeat()
    a.train(9)
    with pytest.raises(LeaseLost):
        a.upload()
    assert b.begin().step() == 0
    assert b.stored() == []


def test_what_was_trained_without_a_store_is_gone_on_with(worker):
    a = worker("a").train(6)
    a.begin().upload()
    a.lease.release()
    assert a.step() == 6
    assert worker("b").begin().step() == 6


def test_what_was_trained_without_a_store_gives_way_to_what_is_in_it(worker):
    a, b = worker("a").begin(), worker("b").train(500)
    a.train(6).upload()
    a.lease.release()
    assert b.begin().step() == 6


def test_finished_parts_of_an_unfinished_stage_are_not_made_again(worker):
    a, b = worker("a"), worker("b")
    stage, other = a.mirror.run.data, b.mirror.run.data
    attempt = a.mirror.attempt(stage, a.mirror.leases.acquire("data").token)
    stage.begin({"source": "s"})
    (stage.path / "part-00000.parquet").write_text("rows")
    (stage.path / "features-00000.npy").write_text("features")
    (stage.path / ".part-00001.parquet.7.partial").write_text("half")
    attempt.upload()
    b.mirror.join(other).download()
    assert sorted(path.name for path in other.path.iterdir() if path.name[0] != ".") == [
        "features-00000.npy",
        "part-00000.parquet",
        "started.json",
    ]
    stage.finish({"source": "s"}, ["part-00000.parquet"], Contents())
    a.mirror.upload(stage, attempt)
    assert not [name for name in a.store.names("data") if "features" in name], "tidied"


def test_helpers_upload_parts_and_nothing_else(worker):
    a, b = worker("a"), worker("b")
    with pytest.raises(LeaseLost, match="not begun"):
        b.mirror.join(b.mirror.run.data)
    attempt = a.mirror.attempt(a.mirror.run.data, a.mirror.leases.acquire("data").token)
    helper = b.mirror.join(b.mirror.run.data)
    (b.mirror.run.data.path / "part-00001.parquet").write_text("rows")
    helper.upload_files()
    attempt.download()
    assert (a.mirror.run.data.path / "part-00001.parquet").read_text() == "rows"
    assert a.store.names("data/progress") == ["data/progress/00000001.json"]


def test_parts_of_an_earlier_attempt_are_not_taken(worker):
    """A helper that was not told uploads one after the stage was started over."""
    a, b = worker("a"), worker("b")
    a.mirror.attempt(a.mirror.run.data, a.mirror.leases.acquire("data").token)
    helper = b.mirror.join(b.mirror.run.data)
    a.mirror.clear(a.mirror.run.data)
    (b.mirror.run.data.path / "part-00001.parquet").write_text("old rows")
    helper.upload_files()
    attempt = a.mirror.attempt(a.mirror.run.data, a.mirror.leases.acquire("data").token)
    attempt.download()
    assert not (a.mirror.run.data.path / "part-00001.parquet").exists()
    again = b.mirror.join(b.mirror.run.data)
    again.upload_files()
    assert not (b.mirror.run.data.path / "part-00001.parquet").exists(), "nor kept where it was made"


def test_a_folder_that_a_job_removes_meanwhile_is_passed_over(tmp_path):
    folders = {tmp_path / "one", tmp_path / "two"}
    for folder in (*folders, tmp_path / ".hidden"):
        folder.mkdir()
        (folder / "part").write_text("a")
    files = walk(tmp_path)
    (other,) = folders - {next(files).parent}
    shutil.rmtree(other)
    assert list(files) == []
