"""Which task a machine gets."""

import pytest

from atoll.net import choosing
from atoll.net.protocol import Capabilities, Refusal, Unit
from atoll.net.tables import Account, Device, TaskRow
from tests.net.crowds import RUN, PretendedPlan

PLAN = PretendedPlan()


@pytest.fixture
def session(database):
    with database.writing() as session:
        session.add(Account(id="a" * 64, public="", nickname="", created=0.0, number=1))
        session.flush()
        yield session


def device(**changes):
    return Device(id="d" * 64, account="a" * 64, speed=0.0, **changes)


def add(session, name, role="train", failed=(), **more):
    unit = Unit(run=RUN, name=name, stage=name, role=role, **more)
    session.add(
        TaskRow(
            key=name,
            copy=0,
            unit=unit.model_dump(mode="json"),
            digest=unit.digest,
            name=name,
            stage=name,
            role=role,
            state="open",
            failed=list(failed),
            created=0.0,
        )
    )
    session.flush()


def choose(session, **capabilities):
    return choosing.choose(session, device(), Capabilities(**capabilities), PLAN, 7200.0)


def test_gpus_do_first_what_they_are_good_for(session):
    add(session, "plain")
    add(session, "heavy", gpu=True)
    assert choose(session, gpu=True).row.name == "heavy"
    assert choose(session).row.name == "plain"


def test_what_is_too_large_says_so(session):
    add(session, "large", memory=8 << 30)
    refusal = choose(session, memory=4 << 30)
    assert (
        isinstance(refusal, Refusal)
        and refusal.reason == "too-little-memory"
        and "8.0 GiB" in refusal.sentence
    )
    assert choose(session).row.name == "large", "who does not say how much it has may try"
    assert choose(session, memory=9 << 30).row.name == "large"


def test_what_failed_here_goes_elsewhere(session):
    add(session, "odd", failed=["d" * 64])
    assert choose(session).reason == "waiting"
    add(session, "good")
    assert choose(session).row.name == "good"


def test_only_so_many_are_looked_at(session, monkeypatch):
    monkeypatch.setattr(choosing, "LOOK", 3)
    for index in range(5):
        add(session, f"train {index}")
    add(session, "draw", role="draw")
    assert choose(session, roles=["draw"]).reason == "role"
