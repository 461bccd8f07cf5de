"""What tells an auditor who has replayed from one who repeats what everybody can read."""

import pytest
from sqlalchemy import select

from atoll.net import protocol, tracing
from atoll.net.protocol import Unit, digest_of
from atoll.net.tables import SubmissionRow, VerdictRow
from tests.net.policed import CALM, Plan, World, ways
from tests.net.test_audits import holds, is_honest

UNIT = Unit(run="0" * 64, name="n", stage="expert 0", role="train", first=20, last=45, every=10)
EAGER = CALM.model_copy(update={"release": 1.0})


def submission(*traces):
    return SubmissionRow(facts=tracing.kept(UNIT, traces))


def verdict(by, traced, way=""):
    return VerdictRow(by=by, evidence={"traced": traced, "way": way})


def test_intervals_end_where_the_chain_has_links():
    assert tracing.ends_of(UNIT) == [30, 40, 45]
    assert tracing.traces_of(UNIT, {30: "aa", 45: "cc", 99: "dd"}) == ("aa", "", "cc")
    assert tracing.traces_of(UNIT, {99: "dd"}) == (), "nothing of these intervals is known"


def test_traces_of_another_number_of_intervals_are_none():
    assert tracing.kept(UNIT, ("aa", "bb")) == {}
    assert tracing.digest({}) == ""
    assert tracing.digest(tracing.kept(UNIT, ("aa", "bb", "cc"))) == digest_of(["aa", "bb", "cc"])


@pytest.mark.parametrize(
    ("theirs", "own", "expected"),
    [
        (("aa", "bb", "cc"), ("aa", "bb", "cc"), True),
        (("aa", "bb", "cc"), ("aa", "xx", "cc"), False),
        (("aa", "", "cc"), ("aa", "xx", "cc"), True),
        (("aa", "bb", "cc"), ("aa", "", "cc"), False),
        (("aa", "bb", "cc"), (), False),
        ((), ("aa", "bb", "cc"), None),
    ],
)
def test_a_way_is_the_same_in_every_interval_that_the_worker_told_of(theirs, own, expected):
    assert tracing.is_traced(submission(*theirs), UNIT, submission(*own), UNIT) is expected


def test_a_single_interval_is_compared_with_its_own_trace():
    asked = UNIT.model_copy(update={"first": 30, "last": 40})
    audit = SubmissionRow(facts=tracing.kept(asked, ("bb",)))
    assert tracing.is_traced(submission("aa", "bb", "cc"), UNIT, audit, asked) is True
    assert tracing.is_traced(submission("aa", "b0", "cc"), UNIT, audit, asked) is False


def test_idleness_is_proven_by_two_who_came_by_the_workers_way():
    lazy, ann, bob = verdict("lazy", False, "x"), verdict("ann", True), verdict("bob", True)
    assert not tracing.is_idle(lazy, [lazy, ann])
    assert tracing.is_idle(lazy, [lazy, ann, bob])
    assert tracing.counted([lazy, ann, bob]) == [ann, bob]
    assert not tracing.is_idle(ann, [lazy, ann, bob])


def test_a_worker_who_tells_of_a_false_way_has_three_auditors_against_it():
    """Two who never look may agree on what to say; three are more than is assumed of friends."""
    rows = [verdict(name, False, "honest") for name in ("ann", "bob", "eve")]
    assert tracing.counted(rows[:2]) == [] and tracing.counted(rows) == rows
    nothing = [verdict(name, False, "") for name in ("ann", "bob", "eve")]
    assert tracing.counted(nothing) == [], "who says nothing agrees with nobody"


def test_who_repeats_the_public_hashes_is_found_out_the_first_time(sqlite, tmp_path):
    """No canary is needed: the log has every hash of a state, and none of the losses on the way."""
    world = World(tmp_path, sqlite, EAGER, Plan(trainings=1, steps=80, segment=80, every=10))
    ann, lazy, *others = (world.machine() for _ in range(4))
    lazy.replays = False
    assert ann.work(roles=("train",)).state == "checked"
    world.tick()
    ann.show()
    world.tick(61.0)
    offer = lazy.lease(roles=("audit",))
    assert lazy.submit(offer).json()["state"] == "checked", "nothing tells it that it was seen"
    world.finish([ann, *others])
    (failed,) = [one for one in world.told("verdict") if one["check"] == "trace"]
    assert failed["hard"] and failed["submission"] in {row.id for row in world.rows(SubmissionRow)}
    assert world.escrow(lazy) == 0 and world.escrow(ann) > 0
    assert is_honest(world)
    holds(world)


def test_the_log_has_the_digest_of_traces_and_no_trace(sqlite, tmp_path):
    world = World(tmp_path, sqlite, EAGER, Plan(trainings=1, steps=20, segment=20))
    ann = world.machine()
    ann.work(roles=("train",))
    with sqlite.reading() as session:
        kept = session.scalars(select(SubmissionRow)).one().facts[tracing.KNOWN]
    (told,) = world.told("result")
    assert told["traces"] == digest_of(kept)
    assert not any(trace in str(told) for trace in kept)


def test_a_worker_who_tells_of_a_false_way_harms_no_auditor(sqlite, tmp_path):
    world = World(tmp_path, sqlite, EAGER, Plan(trainings=1, steps=20, segment=20))
    ann, *others = (world.machine() for _ in range(4))
    offer = ann.lease(roles=("train",))
    result = ann.train(offer.unit)
    false = ways([*ann.values[:-1], b"nonsense"])
    message = protocol.Submission(fence=offer.fence, result=result, traces=false)
    number = ann.post(f"/v1/leases/{offer.lease}/submit", message).json()["submission"]
    ann.kept[number] = offer.unit, ann.values
    world.finish([ann, *others])
    assert not [one for one in world.told("verdict") if one["hard"]]
    assert all(world.escrow(one) > 0 for one in others)
    assert is_honest(world)
