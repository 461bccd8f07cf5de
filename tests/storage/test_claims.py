"""Claims between threads that play machines, on a real S3 server and on a mounted folder."""

import json
import threading
import time

import pytest

from atoll.errors import Interrupted, StorageError
from atoll.storage import claims
from atoll.storage.claims import Claim, Presence
from atoll.storage.objects import Store


@pytest.fixture
def told():
    return []


@pytest.fixture(params=["s3", "folder"])
def place(request, tmp_path, told):
    address = (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )
    return Store(address, tell=lambda kind, **facts: told.append((kind, facts)))


GONE = 2**22 + 1
"""A process id above any that there can be."""


def never():
    return False


def elsewhere(claim):
    """As if the claim were held by a process of another machine."""
    claim._said["space"] = "another machine"
    return claim


def test_one_of_many_takes_it_at_a_time(place):
    held, most, order = [], [], []

    def machine(number):
        claim = Claim(place, "experts/03", lease=2)
        assert claim.take(never)
        held.append(number)
        most.append(len(held))
        order.append(claim.number)
        with claim.kept():
            time.sleep(0.05)
            held.remove(number)

    threads = [threading.Thread(target=machine, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert sorted(order) == order == [1, 2, 3, 4]


def test_different_things_are_claimed_independently(place):
    assert Claim(place, "experts/00", 60).take(never)
    assert Claim(place, "experts/01", 60).take(never)


def test_silence_ends_a_claim_and_is_told(place, told):
    dead = elsewhere(Claim(place, "router", lease=1))
    assert dead.take(never)
    heir = Claim(place, "router", lease=1)
    assert heir.take(never)
    assert heir.number == 2
    assert not dead.beat(), "who wakes up again sees that it has lost"
    assert dead.lost.is_set()
    assert [(kind, facts["claim"]) for kind, facts in told] == [
        ("claimed", 1),
        ("waiting", 1),
        ("lost", 1),
        ("claimed", 2),
    ]


def test_a_beating_claim_is_respected(place):
    alive = elsewhere(Claim(place, "router", lease=1.5))
    assert alive.take(never)
    stop = time.monotonic() + 3
    with alive.kept():
        assert not Claim(place, "router", lease=1.5).take(never, lambda: time.monotonic() > stop)
    assert Claim(place, "router", lease=1000).take(never), "given back, so nobody waits"


def test_a_dead_process_of_this_machine_is_not_waited_for(place, monkeypatch):
    dead = Claim(place, "router", lease=1000)
    dead._said["pid"] = GONE
    assert dead.take(never)
    assert Claim(place, "router", lease=1000).take(never)


def test_nobody_claims_what_is_done(place):
    assert Claim(place, "router", 60).take(never)
    assert not Claim(place, "router", 60).take(lambda: True)


def test_the_loser_of_a_claim_leaves_it_to_the_winner(place):
    slow = elsewhere(Claim(place, "router", lease=0.8))
    assert slow.take(never)
    with slow.kept():
        place.create("claims/router/00000002.json", json.dumps({"host": "heir", "beat": 0}).encode())
        assert slow.lost.wait(10)
    assert place.read_json("claims/router/00000002.json") == {"host": "heir", "beat": 0}
    assert "released" not in place.read_json("claims/router/00000001.json")


def test_without_proc_there_is_no_shortcut(monkeypatch):
    monkeypatch.setattr(claims, "_space", lambda: "")
    assert not claims._is_free({"space": "", "pid": GONE})


def test_a_claim_outlives_a_store_that_says_no_for_a_while(place, monkeypatch):
    claim = Claim(place, "router", lease=0.4)
    assert claim.take(never)
    answers, write, beats = [StorageError("no"), Interrupted("away")], place.write, threading.Event()

    def refuse(name, data):
        if answers:
            raise answers.pop()
        write(name, data)
        beats.set()

    monkeypatch.setattr(place, "write", refuse)
    with claim.kept():
        assert beats.wait(30), "it went on renewing"
    assert place.read_json(claim._name)["released"]


def driver(place, space=None, pid=None, lease=1000.0):
    sign = Presence(place, lease)
    sign._said |= {key: value for key, value in (("space", space), ("pid", pid)) if value}
    sign.announce()
    return sign


def of_drivers(told):
    return [(kind, facts["claim"]) for kind, facts in told if facts["what"] == "driver"]


def test_a_driver_that_ended_well_is_not_spoken_of(place, told):
    with driver(place).kept():
        pass
    driver(place).look()
    assert told == []


def test_a_driver_that_was_killed_is_told_of_once(place, told):
    driver(place, pid=GONE)
    driver(place).look()
    assert of_drivers(told) == [("lost", 1)]


def test_a_driver_elsewhere_is_lost_after_its_silence(place, told):
    driver(place, space="another machine")
    next_one = driver(place, lease=1)
    assert told == [], "too early to say"
    time.sleep(1.1)
    next_one.look()
    next_one.look()
    assert of_drivers(told) == [("lost", 1)]


def test_two_drivers_at_once_are_told_of(place, told):
    there, here = driver(place, space="another machine"), driver(place)
    assert of_drivers(told) == [], "it cannot know yet whether the other one lives"
    for _ in range(2):
        there.beat()
        here.beat()
    assert of_drivers(told) == [("another", 1)]
    driver(place)
    assert of_drivers(told) == [("another", 1), ("another", 2)], "a process of this machine is seen at once"


def test_of_two_drivers_that_begin_at_the_same_moment_one_sees_the_other(place, told, monkeypatch):
    driver(place)
    names, asked = place.names, []

    def late(under=""):
        asked.append(under)
        return {} if len(asked) == 1 else names(under)  # the other one was not there yet

    monkeypatch.setattr(place, "names", late)
    assert driver(place).number == 2
    assert of_drivers(told) == [("another", 1)]
