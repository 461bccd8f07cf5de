"""Many signs of life at once: each answered as if it had come alone."""

import threading

import pytest

from atoll.net import beating, keeping, leasing
from atoll.net.beating import Beat, Beats
from atoll.net.callers import Caller
from atoll.net.database import Away
from atoll.net.protocol import Heartbeat
from atoll.net.signing import Signed, Unsigned
from atoll.net.tables import LeaseRow, Nonce, TaskRow
from tests.net.crowds import Machine, PretendedPlan, coordinator


@pytest.fixture
def here(database, tmp_path):
    return coordinator(database, tmp_path, PretendedPlan(trainings=3))


def caller_of(machine: Machine, number: int) -> Caller:
    return Caller(machine.name, machine.id, Signed(machine.id, f"nonce number {number:06d}", 1e12))


def rows(here):
    """What is known of leases and tasks."""
    with here.database.reading() as session:
        leases = {row.id: (row.step, row.head, row.heard, row.state) for row in session.query(LeaseRow)}
        tasks = {row.id: (row.state, row.heard, row.fence) for row in session.query(TaskRow)}
    return leases, tasks


def test_a_batch_is_answered_as_one_after_the_other(here):
    """A good one, a replay of it, another's, a wrong fence, none, one that was given away, a newer word."""
    one, other, late = (Machine.of(here) for _ in range(3))
    given_away = late.lease()
    here.clock.time += 100_000
    keeping.sweep(here)
    first, second = one.lease(), other.lease()
    assert first.unit == given_away.unit and first.fence == 2
    asked = [
        (one, first.lease, 2, 4, 0),
        (one, first.lease, 2, 4, 0),
        (other, first.lease, 2, 5, 1),
        (other, second.lease, 7, 5, 2),
        (other, "nothing", 1, 5, 3),
        (late, given_away.lease, 1, 3, 4),
        (one, first.lease, 2, 9, 5),
        (other, second.lease, 1, 6, 6),
    ]
    beats = [
        Beat(caller_of(who, number), name, Heartbeat(fence=fence, step=step))
        for who, name, fence, step, number in asked
    ]
    here.clock.time += 30
    with here.database.writing() as session:
        beating.write(here, session, beats, 60.0)
    words = [getattr(beat.problem, "code", None) or type(beat.problem).__name__ for beat in beats]
    assert words == [
        "NoneType",
        "replay",
        "NotYours",
        "fence",
        "NotYours",
        "NoneType",
        "NoneType",
        "NoneType",
    ]
    verdicts = [beat.answer.verdict for beat in beats if beat.answer]
    assert verdicts == ["keep", "stop", "keep", "keep"] and beats[5].answer.reason == beating.GIVEN_AWAY
    leases, tasks = rows(here)
    assert leases[first.lease][0] == 9 and leases[second.lease][0] == 6
    assert leases[given_away.lease][2] < here.clock.date() - 1000, "who was told to stop is not heard"
    assert sorted(tasks.values())[:2] == [("leased", here.clock.date(), 1), ("leased", here.clock.date(), 2)]
    with here.database.reading() as session:
        assert session.query(Nonce).filter(Nonce.nonce.like("nonce number%")).count() == 7


def test_all_who_wait_are_written_in_one_transaction(here, monkeypatch):
    crew = [Machine.of(here) for _ in range(3)]
    offers = [machine.lease() for machine in crew]
    beats, transactions, inside, go = Beats(), [], threading.Event(), threading.Event()
    writing = here.database.writing

    def slow(durable=True):
        transactions.append(durable)
        inside.set()
        go.wait(600)
        return writing(durable)

    monkeypatch.setattr(here.database, "writing", slow)
    answers = {}

    def hear(number):
        message = Heartbeat(fence=1, step=number)
        answers[number] = beats.hear(here, caller_of(crew[number], number), offers[number].lease, message)

    threads = [threading.Thread(target=hear, args=(number,)) for number in range(3)]
    threads[0].start()
    assert inside.wait(600)
    for thread in threads[1:]:
        thread.start()
    while len(beats._waiting) < 2:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join(600)
    assert transactions == [False, False], "the first alone, the others together, none forced to the disk"
    assert [answers[number].verdict for number in range(3)] == ["keep"] * 3
    assert [rows(here)[0][offer.lease][0] for offer in offers] == [0, 1, 2]


def test_a_database_that_is_away_is_told_to_each_and_forgotten(here, monkeypatch):
    machine = Machine.of(here)
    offer, beats = machine.lease(), Beats()
    with monkeypatch.context() as patch:
        patch.setattr(here.database, "writing", lambda durable: (_ for _ in ()).throw(Away("away")))
        with pytest.raises(Away):
            beats.hear(here, caller_of(machine, 0), offer.lease, Heartbeat(fence=1))
    assert beats.hear(here, caller_of(machine, 0), offer.lease, Heartbeat(fence=1)).verdict == "keep"
    with pytest.raises(Unsigned, match="already"):
        beats.hear(here, caller_of(machine, 0), offer.lease, Heartbeat(fence=1))


def test_the_more_hold_something_the_rarer_each_is_heard(here):
    terms = leasing.Terms()
    seconds = [leasing.interval(holders, terms) for holders in (1, 3000, 10_000, 1_000_000)]
    assert seconds == [60.0, 60.0, 200.0, 300.0]
    assert terms.suspect >= 2.5 * terms.rarest, "two may be lost before anybody is in doubt"
    here.terms = leasing.Terms(beats=0.01)
    machine = Machine.of(here)
    assert machine.lease().heartbeat_s == 100.0
    offer = machine.lease()
    assert offer.heartbeat_s == 100.0, "counted now and then"
    here.clock.time += beating.COUNTED
    assert machine.heartbeat(offer).heartbeat_s == 200.0
