"""What becomes of results where nobody audits, and of units that several must agree on."""

from atoll.net import judging
from atoll.net.comparing import Tools
from atoll.net.protocol import Unit
from atoll.net.tables import Happening, TaskRow
from tests.net.crowds import RUN, Machine, PretendedPlan, coordinator


def test_there_is_one_of_a_unit_at_a_time():
    unit = Unit(run=RUN, name="u", stage="s", role="train", first=20, last=40, every=10)
    assert judging.key_of(unit) == "train|s||20"
    assert (
        judging.key_of(unit.model_copy(update={"share": 3, "role": "encode", "first": 0})) == "encode|s|3|0"
    )


def test_shares_that_are_alike_within_rounding_agree(database, tmp_path):
    """By a process that says so; what it is asked are the files under their names."""
    asked = []

    def ask(module, files):
        asked.append((module, files))
        return True

    judge = judging.Judge(tools=Tools(ask))
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1), judge=judge)
    one, other = Machine.of(here), Machine.of(here)
    assert one.work().state == "checked"
    offer = other.lease()
    assert other.submit(offer, false=True).json()["state"] == "accepted", "not the same bytes, but alike"
    assert asked and asked[0][0].endswith("tolerance") and asked[0][1][0].endswith("/a/0")
    with database.reading() as session:
        assert not session.query(Happening).filter_by(kind="quorum_disagrees").all()
        assert {row.state for row in session.query(TaskRow).filter_by(role="encode")} == {"accepted"}
