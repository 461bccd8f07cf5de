"""A run in a store is followed by its records and new bytes of metrics, and the store is never written to."""

import json
from typing import Any

import pytest

from atoll.errors import RunError
from atoll.runs import Run, previews, read_lines
from atoll.runs.records import ExpertContents
from atoll.storage.following import Following
from atoll.storage.mirror import Mirror
from tests.serving import finish


class Trainer:
    """A machine that trains expert 0 of a run in the bucket."""

    def __init__(self, run, address):
        self.run, self.stage = run, run.expert(0)
        self.mirror = Mirror(run, address, 30)
        self.mirror.open(lead=True)
        self.begin()

    def begin(self):
        lease = self.mirror.leases.acquire("experts/00")
        assert lease is not None
        self.attempt = self.mirror.attempt(self.stage, lease.token)
        self.stage.start({"data": "x"})
        return lease

    def measure(self, *steps):
        with (self.stage.path / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps({"step": step, "loss": 0.5}) + "\n" for step in steps))
        self.attempt.upload()


@pytest.fixture
def place(store, prepared):
    return store, f"{store.address}/tiny", Trainer(prepared(), f"{store.address}/tiny")


def steps(run: Run):
    return [line["step"] for line in read_lines(run.expert(0).path / "metrics.jsonl")]


def asked_for(store, name):
    return [method for method, path in store.proxy.requests if name in path and method == "GET"]


def test_new_lines_come_and_nothing_twice(place):
    store, address, trainer = place
    trainer.measure(10, 20)
    following = Following(address)
    following.refresh()
    stage = following.run.expert(0)
    assert stage.started == {"data": "x"} and not stage.done
    assert steps(following.run) == [10, 20]
    store.proxy.reset()
    following.refresh()
    assert asked_for(store, "/metrics.") == [], "nothing is new, so nothing is asked for"
    trainer.measure(30)
    following.refresh()
    assert steps(following.run) == [10, 20, 30]
    assert following.run.path != trainer.run.path
    store.proxy.reset()
    following.refresh()
    assert {method for method, _ in store.proxy.requests} <= {"GET", "HEAD"}


def test_another_machine_goes_on_with_a_file_of_its_own(place):
    _, address, trainer = place
    trainer.measure(10, 20)
    following = Following(address)
    following.refresh()
    trainer.mirror.leases.revoke("experts/00")
    trainer.begin()
    (trainer.stage.path / "metrics.jsonl").write_text("")
    trainer.measure(10, 15)
    following.refresh()
    assert steps(following.run) == [10, 15]


def test_a_finished_stage_is_finished_and_one_that_is_thrown_away_is_gone(place):
    _, address, trainer = place
    trainer.measure(10)
    following = Following(address)
    following.refresh()
    finish(trainer.stage, ExpertContents(steps=10))
    trainer.mirror.upload(trainer.stage, trainer.attempt)
    following.refresh()
    assert following.run.expert(0).done and steps(following.run) == [10]
    trainer.mirror.clear(trainer.stage)
    following.refresh()
    assert not following.run.expert(0).done and steps(following.run) == []


def test_previews_come_while_it_trains_and_stay(place):
    _, address, trainer = place
    path = previews.path_of(trainer.stage.path, 100)
    path.parent.mkdir()
    path.write_bytes(b"picture")
    trainer.measure(100)
    following = Following(address)
    following.refresh()
    ((step, here),) = previews.listed(following.run.expert(0).path)
    assert (step, here.read_bytes()) == (100, b"picture")
    finish(trainer.stage, ExpertContents(steps=100))
    trainer.mirror.upload(trainer.stage, trainer.attempt)
    following.refresh()
    assert len(previews.listed(following.run.expert(0).path)) == 1


def test_events_of_all_machines_are_there(place):
    _, address, trainer = place
    trainer.mirror.event("lost", what="experts/00")
    trainer.mirror.upload_events()
    following = Following(address)
    following.refresh()
    assert "lost" in [line["event"] for line in read_lines(following.run.path / "events.jsonl")]


def test_a_store_that_is_away_leaves_what_was_seen(place, monkeypatch):
    store, address, trainer = place
    trainer.measure(10)
    following = Following(address)
    following.refresh()
    store_here: Any = following._mirror.store
    monkeypatch.setattr(store_here._patience, "seconds", 0.0)
    store.proxy.fault = lambda number, method, path: "503"
    following.refresh()
    assert following.problem
    assert steps(following.run) == [10]
    store.proxy.reset()
    following.refresh()
    assert not following.problem


def test_what_is_no_run_is_told(store):
    with pytest.raises(RunError, match="is not a run"):
        Following(f"{store.address}/nothing")
