"""What leases promise, on each kind of store; time passes only when a test says so."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.storage.leases import StoreLeases, kept, wait
from atoll.storage.store import open_store

SECONDS = 60.0


@pytest.fixture(params=["folder", "s3"])
def machine(request, tmp_path, clock, events, monkeypatch):
    """One machine of several: leases of its own over the store that all have in common."""
    address = (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )
    # Processes of this machine that are gone are known at once; here each is one of another machine.
    numbers = iter(range(1000))
    monkeypatch.setattr("atoll.storage.leases._space", lambda: f"machine {next(numbers)}")

    def make():
        place = open_store(address, event=lambda kind, **facts: events.append((kind, facts)))
        return StoreLeases(place, SECONDS, clock)

    return make


def test_one_holder_at_a_time(machine):
    a, b = machine(), machine()
    lease = a.acquire("router")
    assert lease.token == 1 and not lease.lost
    assert b.acquire("router") is None
    lease.release()
    assert b.acquire("router").token == 2, "given back, so nobody waits"


def test_different_names_are_leased_independently(machine):
    assert machine().acquire("experts/00") and machine().acquire("experts/01")


def test_silence_ends_a_lease(machine, clock, events):
    a, b = machine(), machine()
    dead = a.acquire("router")
    assert b.acquire("router") is None
    clock.time += SECONDS - 1
    assert b.acquire("router") is None
    clock.time += 1
    heir = b.acquire("router")
    assert heir.token == 2
    assert not dead.heartbeat() and dead.lost, "who wakes up again sees that it has lost"
    assert [(kind, facts["token"]) for kind, facts in events] == [
        ("leased", 1),
        ("waiting", 1),
        ("lost", 1),
        ("leased", 2),
        ("lease_lost", 1),
    ]


def test_a_heartbeat_is_respected(machine, clock):
    a, b = machine(), machine()
    alive = a.acquire("router")
    for _ in range(5):
        assert b.acquire("router") is None
        clock.time += SECONDS - 1
        assert alive.heartbeat()
    assert b.acquire("router") is None


def test_silence_is_measured_from_when_one_first_looked(machine, clock):
    """However long ago the holder spoke: there is no clock that machines share."""
    machine().acquire("router")
    clock.time += 1000 * SECONDS
    late = machine()
    assert late.acquire("router") is None
    clock.time += SECONDS
    assert late.acquire("router").token == 2


def test_the_loser_leaves_it_to_its_heir(machine, clock):
    a, b = machine(), machine()
    slow = a.acquire("router")
    b.acquire("router")
    clock.time += SECONDS
    heir = b.acquire("router")
    slow.heartbeat()
    slow.release()
    assert machine().acquire("router") is None, "it was not the loser's to give back"
    assert heir.heartbeat()


def test_a_lease_can_be_revoked(machine):
    a = machine()
    lease = a.acquire("router")
    assert machine().revoke("router") == 2
    assert not lease.heartbeat()
    assert a.acquire("router").token == 3, "and nobody has it"
    assert machine().revoke("never leased") == 1


def test_one_of_many_gets_it(machine):
    leases = []

    def race():
        lease = machine().acquire("router")
        if lease is not None:
            leases.append(lease)

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lease.token for lease in leases] == [1]


def test_waiting_until_it_is_ours(machine, clock):
    holder = machine().acquire("router")
    clock.then = lambda: holder.release() if len(clock.naps) == 3 else holder.heartbeat()
    lease = wait(machine(), "router", SECONDS, lambda: False, clock=clock)
    assert lease.token == 2
    assert clock.naps == [5.0] * 3, "a look every five seconds"


def test_nobody_waits_for_what_is_done_or_when_asked_to_stop(machine, clock):
    machine().acquire("router")
    assert wait(machine(), "router", SECONDS, lambda: True, clock=clock) is None
    assert wait(machine(), "router", SECONDS, lambda: False, lambda: len(clock.naps) == 2, clock) is None
    assert clock.naps == [5.0] * 2


def test_a_kept_lease_is_given_back(machine, clock):
    with kept(machine().acquire("router"), SECONDS, clock):
        assert machine().acquire("router") is None
    with pytest.raises(ZeroDivisionError), kept(machine().acquire("router"), SECONDS, clock):
        _ = 1 / 0
    assert machine().acquire("router").token == 3


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["acquire", "heartbeat", "release", "silence"]), st.integers(0, 2)), max_size=20
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS, st.uuids())
def test_of_all_that_believe_in_their_lease_after_a_heartbeat_there_is_one(machine, clock, actions, name):
    """Three machines in any order: tokens grow, and at most one heartbeat is answered with yes."""
    leases, held, tokens = [machine() for _ in range(3)], {}, [0]
    for action, number in actions:
        if action == "acquire":
            lease = leases[number].acquire(str(name))
            if lease is not None:
                held[number] = lease
                tokens.append(lease.token)
        elif action == "silence":
            clock.time += SECONDS
        elif number in held:
            getattr(held[number], action)()
            if action == "release":
                del held[number]
    assert tokens == sorted({*tokens})
    alive = [lease for lease in held.values() if lease.heartbeat()]
    assert [lease.token for lease in alive] in ([], [tokens[-1]])
