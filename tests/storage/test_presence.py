"""Drivers of one run that see each other, on a real S3 server and on a mounted folder."""

import pytest

from atoll.storage.presence import Presence
from atoll.storage.store import open_store

GONE = 2**22 + 1
"""A process id above any that there can be."""
SECONDS = 60.0


@pytest.fixture(params=["s3", "folder"])
def place(request, tmp_path, events):
    address = (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )
    return open_store(address, event=lambda kind, **facts: events.append((kind, facts["token"])))


@pytest.fixture
def driver(place, clock):
    def make(**changes):
        sign = Presence(place, SECONDS, clock)
        sign.holder |= changes
        sign.announce()
        return sign

    return make


def test_a_driver_that_ended_well_is_not_spoken_of(driver, events):
    with driver().kept():
        pass
    driver().look()
    assert events == []


def test_a_driver_that_was_killed_is_an_event_once(driver, events):
    driver(pid=GONE)
    driver().look()
    assert events == [("lost", 1)]


def test_a_driver_elsewhere_is_lost_after_its_silence(driver, events, clock):
    driver(space="another machine")
    next_one = driver()
    clock.time += SECONDS - 1
    next_one.look()
    assert events == [], "too early to say"
    clock.time += 1
    next_one.look()
    next_one.look()
    assert events == [("lost", 1)]


def test_two_drivers_at_once_are_an_event(driver, events):
    there, here = driver(space="another machine"), driver()
    assert events == [], "it cannot know yet whether the other one lives"
    for _ in range(2):
        there.heartbeat()
        here.heartbeat()
    assert events == [("another", 1)]
    driver()
    assert events == [("another", 1), ("another", 2)], "a process of this machine is seen at once"


def test_of_two_drivers_that_begin_at_the_same_moment_one_sees_the_other(driver, place, events, monkeypatch):
    driver()
    names, asked = place.names, []

    def late(under=""):
        asked.append(under)
        return [] if len(asked) == 1 else names(under)  # the other one was not there yet

    monkeypatch.setattr(place, "names", late)
    assert driver().number == 2
    assert events == [("another", 1)]
