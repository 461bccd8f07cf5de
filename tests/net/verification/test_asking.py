"""The unit that an auditor is given."""

import pytest

from atoll.errors import AtollError
from atoll.net.protocol import File, Unit
from atoll.net.verification.asking import COMMITTED, audit_unit, state_name


def file(path: str) -> File:
    return File(path=path, sha256=f"{hash(path) % 2**64:064x}", size=3)


def state(step: int) -> tuple[File, ...]:
    return file(f"experts/00/state/{state_name(step)}"), file(f"experts/00/state/latest-{step}.json")


CLUSTER = file("partition/00/part-0.parquet")
UNIT = Unit(
    run="a" * 64,
    name="expert 0 @ 40..75",
    stage="expert 0",
    role="train",
    first=40,
    last=75,
    every=10,
    inputs=(CLUSTER, *state(40)),
    price=350,
    work=70.0,
)


def test_an_interval_whose_states_are_there():
    unit = audit_unit(UNIT, 1, {50: state(50), 60: state(60), 75: state(75)})
    assert (unit.role, unit.first, unit.last, unit.name) == ("audit", 50, 60, "audit expert 0 @ 50..60")
    committed = state(60)[0].model_copy(update={"path": COMMITTED})
    assert unit.inputs == (CLUSTER, *state(50), committed)
    assert (unit.price, unit.work) == (100, 20.0)


def test_the_first_interval_begins_with_what_was_handed_out():
    unit = audit_unit(UNIT, 0, {50: state(50), 75: state(75)})
    assert (unit.first, unit.last) == (40, 50)
    assert unit.inputs[:-1] == UNIT.inputs


def test_the_last_interval_may_be_short():
    unit = audit_unit(UNIT, 3, {70: state(70), 75: state(75)})
    assert (unit.first, unit.last, unit.price) == (70, 75, 50)


def test_without_its_states_all_of_the_segment_is_replayed():
    unit = audit_unit(UNIT, 1, {60: state(60), 75: state(75)})
    assert (unit.first, unit.last, unit.price) == (40, 75, 350)
    assert unit.inputs[:-1] == UNIT.inputs


def test_without_the_last_state_nothing_can_be_asked():
    with pytest.raises(AtollError, match="step 75 is not in the store"):
        audit_unit(UNIT, 1, {60: state(60)})
