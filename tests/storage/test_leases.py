"""Leases of processes of this machine, and heartbeats from a thread; the rest is in tests/contracts."""

import pytest

from atoll.errors import Interrupted, StorageError
from atoll.storage import leases as room
from atoll.storage.leases import StoreLeases, heartbeats, kept
from atoll.storage.store import open_store
from tests.clocks import ManualClock, TickingClock

GONE = 2**22 + 1
"""A process id above any that there can be."""


@pytest.fixture
def leases(tmp_path):
    return StoreLeases(open_store(str(tmp_path / "mounted")), 1000, ManualClock())


def test_a_dead_process_of_this_machine_is_not_waited_for(leases, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: GONE)
    assert leases.acquire("router")
    assert leases.acquire("router").token == 2


def test_a_live_process_of_this_machine_is_waited_for(leases):
    assert leases.acquire("router")
    assert leases.acquire("router") is None


def test_without_proc_there_is_no_shortcut(monkeypatch):
    monkeypatch.setattr(room, "_space", lambda: "")
    assert not room.is_free({"space": "", "pid": GONE})


def test_a_lease_outlives_a_store_that_says_no_for_a_while(leases, monkeypatch):
    clock, lease = TickingClock(), leases.acquire("router")
    answers, write = [StorageError("no"), Interrupted("away")], leases.store.write

    def refuse(name, data):
        if answers:
            raise answers.pop()
        write(name, data)

    monkeypatch.setattr(leases.store, "write", refuse)
    with kept(lease, 1000, clock):
        for _ in range(3):
            clock.tick()
        assert answers == []
        assert leases.store.read_json(room.file_name("router", 1))["heartbeat"] == 3, "it went on renewing"
    assert leases.store.read_json(room.file_name("router", 1))["released"]


def test_heartbeats_end_with_the_lease(leases):
    clock, lease = TickingClock(), leases.acquire("router")
    with kept(lease, 1000, clock):
        clock.tick()
        leases.revoke("router")
        assert not lease.lost
        clock._ticks.release()
        while not lease.lost:
            pass
    assert "released" not in leases.store.read_json(room.file_name("router", 1))
    assert leases.store.read_json(room.file_name("router", 1))["heartbeat"] == 1


def test_heartbeats_come_four_times_in_the_time_of_a_lease():
    waits = []

    class Clock(ManualClock):
        def wait(self, ended, seconds):
            waits.append(seconds)
            return len(waits) > 3

    beats = iter([True, True, False])
    with heartbeats(lambda: next(beats), 60, Clock()):
        pass
    assert waits and {*waits} == {15.0}
