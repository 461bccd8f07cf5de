"""What an auditor is asked: an interval whose states are there, or all of a segment."""

import pytest

from atoll.net import auditors
from atoll.net.protocol import File, Numerics, Result, Unit
from atoll.net.tables import SubmissionRow
from atoll.net.verification.asking import COMMITTED, state_name

UNIT = Unit(run="e" * 64, name="u", stage="expert 0", role="train", first=0, last=40, every=10, price=400)


def state(step):
    return File(path=f"experts/00/state/{state_name(step)}", sha256=f"{step:064x}", size=1)


def submission(shown=(), **audit):
    drawn = {"interval": 1, "phase": "accept", "owed": "interval", "due": True, **audit}
    result = Result(unit=UNIT.digest, outputs=(state(40),), numerics=Numerics())
    facts = {"audit": drawn, "shown": {str(step): state(step).model_dump(mode="json") for step in shown}}
    return SubmissionRow(result=result.model_dump(mode="json"), facts=facts)


@pytest.mark.parametrize(
    ("row", "steps", "asked"),
    [
        (submission(), (10, 20), (0, 40)),
        (submission(shown=(10,)), (20,), (0, 40)),
        (submission(shown=(10, 20)), (), (10, 20)),
        (submission(interval=0), (10,), (0, 40)),
        (submission(interval=0, shown=(10,)), (), (0, 10)),
        (submission(interval=3), (30,), (0, 40)),
        (submission(interval=3, shown=(30,)), (), (30, 40)),
        (submission(shown=(10, 20), phase="release", owed="whole"), (), (0, 40)),
        (submission(shown=(10, 20), phase="release", owed="whole", narrowed=True), (), (10, 20)),
    ],
)
def test_an_interval_is_asked_for_where_its_states_are_shown(row, steps, asked):
    assert auditors.wanted(row, UNIT) == steps
    unit = auditors.question(row, UNIT)
    assert (unit.first, unit.last) == asked and unit.price == 10 * (asked[1] - asked[0])
    committed = next(file for file in unit.inputs if file.path == COMMITTED)
    assert committed.sha256 == state(asked[1]).sha256


def test_nothing_is_asked_of_what_is_final_or_not_drawn():
    row = submission()
    row.facts = {**row.facts, "final": True}
    assert auditors.wanted(row, UNIT) == ()
    assert auditors.wanted(SubmissionRow(facts={}), UNIT) == ()
