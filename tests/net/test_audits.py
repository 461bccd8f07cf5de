"""Audits as a coordinator orders them: who lies loses, who is honest is paid."""

from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from atoll.net import audit, auditors, cases, keeping, ledger
from atoll.net.audit import Asked
from atoll.net.comparing import Tools
from atoll.net.log import Entry
from atoll.net.protocol import Numerics
from atoll.net.sources import open_source
from atoll.net.tables import RecordRow, SubmissionRow, TaskRow, VerdictRow
from tests.net.crowds import Machine, files_of
from tests.net.policed import CALM, Plan, World, begin, place, state, walk
from tests.thorough import some


@pytest.fixture
def world(sqlite, tmp_path):
    return World(tmp_path, sqlite, CALM)


def honest(plan) -> dict[str, bytes]:
    """The run's files as one honest machine makes them."""
    files = {}
    for stage in plan.names():
        value = begin(stage)
        for first in range(0, plan.steps, plan.segment):
            value = walk(value, plan._segment(stage, first, first + plan.segment, []))[-1]
        files[place(stage, plan.steps)] = state(value)
    return files


def is_honest(world) -> bool:
    files = files_of(world.here)
    return {path: data for path, data in files.items() if path != "end"} == honest(world.plan)


def holds(world) -> None:
    """A stranger finds nothing wrong, and the books add up."""
    world.publisher.publish()
    found = audit.audit(open_source(str(world.folder / "store")), Asked(now=world.clock.date()))
    assert found.holds, found.text
    with world.database.writing() as session:
        while ledger.project(session):
            pass
        assert ledger.reconcile(session).holds


def test_an_honest_run_is_audited_paid_and_final(database, tmp_path):
    world = World(tmp_path, database, CALM)
    ann, bob = world.machine(), world.machine()
    world.finish([ann, bob])
    assert is_honest(world)
    states = Counter((row.role, row.state) for row in world.rows(TaskRow))
    assert states == {("train", "final"): 2, ("audit", "accepted"): 2, ("whole", "accepted"): 1}
    verdicts = Counter((row.check, row.verdict) for row in world.rows(VerdictRow, phase="accept"))
    assert verdicts == {("replay", "pass"): 2}
    assert all(
        row.by != world.rows(SubmissionRow, id=row.submission)[0].account for row in world.rows(VerdictRow)
    )
    prices = sum(row.unit["price"] for row in world.rows(TaskRow))
    assert world.escrow(ann) + world.escrow(bob) == prices
    assert {row.hard for row in world.rows(RecordRow)} == {0}
    holds(world)


def test_a_segment_is_built_on_at_once_and_paid_when_it_is_settled(world):
    ann, bob = world.machine(), world.machine()
    assert ann.work().state == "checked"
    assert ann.work().state == "checked", "it goes on from its own state, which nobody has looked at"
    assert world.escrow(ann) == 0
    world.tick()
    assert ann.show().status_code == 200
    world.tick()
    assert ann.work(roles=("audit",)).reason == "waiting", "nobody audits himself"
    assert Machine.of(world.here, account=ann.account).work(roles=("audit",)).reason == "waiting"
    assert len({bob.work(roles=("audit",)).unit for _ in range(2)}) == 2
    assert world.escrow(ann) == 2000 and not world.here.done
    assert {row.state for row in world.rows(TaskRow, role="train")} == {"final"}


def test_whoever_does_not_show_states_is_replayed_as_a_whole_and_not_punished(world):
    ann, bob = world.machine(shows=False), world.machine()
    assert ann.work().state == "checked"
    world.tick()
    assert bob.lease(roles=("audit",)).reason in ("role", "waiting", "no-work")
    world.tick(61)
    offer = bob.lease(roles=("audit",))
    assert (offer.unit.first, offer.unit.last) == (0, 20)
    assert bob.submit(offer).json()["state"] == "accepted"
    assert world.escrow(ann) == 1000


def test_who_did_not_hear_the_answer_shows_states_again(world):
    ann = world.machine()
    ann.work()
    world.tick()
    (number,) = ann.kept
    unit, values = ann.kept[number]
    steps = ann.client.get(f"/v1/submissions/{number}").json()["wanted"]
    states = {step: values[(step - unit.first) // unit.every] for step in steps}
    assert states and [ann.show_states(number, unit, states).status_code for _ in range(2)] == [200, 200]
    with world.database.reading() as session:
        stated = session.scalars(select(Entry.kind).where(Entry.kind == "commitment")).all()
    assert len(stated) == len(states), "said once in the log"


def test_states_that_were_not_committed_to_or_asked_for_are_not_taken(world):
    ann, bob = world.machine(), world.machine()
    ann.work()
    (number,) = ann.kept
    unit, values = ann.kept[number]
    assert ann.show_states(number, unit, {10: values[1]}).json()["error"]["code"] == "step", "nobody asked"
    world.tick()
    assert ann.show_states(number, unit, {10: b"another!"}).json()["error"]["code"] == "chain"
    assert bob.show_states(number, unit, {10: values[1]}).status_code == 404
    assert ann.show_states(number, unit, {10: values[1]}).status_code == 200


def look(world, *auditors, turns=12):
    """Others audit until nothing is left to look at; states are shown as they are asked for."""
    for _ in range(turns):
        for one in auditors:
            one.show()
        world.tick()
        for one in auditors:
            one.work(roles=("audit",))


@pytest.mark.parametrize("false", some([{20, 30}, {0, 10, 20, 30}], 1))
def test_a_liar_loses_its_escrow_and_its_segment_is_not_in_the_run(world, false):
    liar, bob, eve = world.machine(false=frozenset(false)), world.machine(), world.machine()
    assert [liar.work().state for _ in range(2)] == ["checked", "checked"]
    look(world, liar, bob, eve, turns=4)
    hard = next(one for one in world.told("verdict") if one["hard"])
    assert hard["by"] == "coordinator" and len(hard["evidence"]["verdicts"]) == 2
    assert world.escrow(liar) == 0
    forfeits = [one for one in world.told("credit") if one["event"].startswith("forfeit")]
    assert len(forfeits) == (0 not in false), "nothing was earned before the first lie"
    assert [row.hard >= 1 for row in world.rows(RecordRow, account=liar.name)] == [True]
    world.finish([bob, eve])
    assert is_honest(world)
    holds(world)


def test_what_was_built_on_a_lie_goes_with_it_and_its_makers_are_not_blamed(world):
    liar, bob, eve = world.machine(false=frozenset({0, 10})), world.machine(), world.machine()
    assert liar.work().state == "checked"
    assert bob.work().state == "checked", "an honest segment after a false one"
    look(world, liar, eve, bob, world.machine(), turns=3)
    submission = world.rows(SubmissionRow, account=bob.name)[0]
    assert submission.state == "rejected" and "built on" in submission.reason and not submission.canonical
    assert not [path for path in files_of(world.here) if path.startswith("expert")]
    assert {row.hard for row in world.rows(RecordRow, account=bob.name)} <= {0}
    world.finish([bob, eve])
    assert is_honest(world)
    holds(world)


def test_one_false_interval_of_a_trusted_account_is_found_by_a_replay_of_all_before_release(sqlite, tmp_path):
    """Nothing is audited for acceptance but what chance draws; at the end every segment is replayed whole."""
    rules = CALM.model_copy(update={"first": 1, "release": 1.0})
    world = World(tmp_path, sqlite, rules, Plan(trainings=1, steps=80, segment=40))
    liar, bob, eve = world.machine(false=frozenset({50})), world.machine(), world.machine()
    assert [liar.work().state for _ in range(2)] == ["checked", "checked"]
    look(world, liar, bob, eve, turns=8)
    assert world.escrow(liar) == 0 and [row.hard for row in world.rows(RecordRow, account=liar.name)] == [1]
    world.finish([bob, eve])
    assert is_honest(world)
    holds(world)


def test_one_accuser_rejects_nobody_and_is_not_paid(world):
    ann, liar, bob, eve = (world.machine() for _ in range(4))
    liar.says = "differs"
    assert ann.work().state == "checked"
    world.tick()
    ann.show()
    world.tick()
    assert liar.work(roles=("audit",)).state == "checked"
    assert world.escrow(ann) == 0, "another is asked"
    world.tick()
    assert bob.work(roles=("audit",)).state == "checked"
    world.tick()
    assert eve.work(roles=("audit",)).state == "accepted"
    assert world.escrow(ann) == 1000 and world.escrow(liar) == 0 and world.escrow(bob) > 0
    holds(world)


def test_what_nobody_can_tell_is_done_again_and_costs_nobody_anything(world):
    """Three machines of other classes, between which no band was measured."""
    ann, *others = (world.machine() for _ in range(4))
    for number, one in enumerate(others):
        one.says, one.numerics = "odd", Numerics(torch=f"9.{number}")
    assert ann.work().state == "checked"
    for one in [*others, *others]:
        world.tick(61)
        one.work(roles=("audit",))
    submission = world.rows(SubmissionRow, account=ann.name)[0]
    assert submission.state == "rejected" and "no conclusion" in submission.reason
    assert not any(one["hard"] for one in world.told("verdict"))
    assert all(world.escrow(one) > 0 for one in others), "they did their work"
    assert world.rows(TaskRow, role="train")[0].state == "open"
    holds(world)


def test_a_dispute_over_a_whole_segment_is_narrowed_to_the_interval_where_chains_part(sqlite, tmp_path):
    world = World(tmp_path, sqlite, CALM, Plan(trainings=1, steps=40, segment=40))
    liar, bob, eve = world.machine(false=frozenset({20}), shows=False), world.machine(), world.machine()
    liar.work()
    world.tick(1)
    world.tick(61)
    assert bob.work(roles=("audit",)).state == "checked"
    challenges = world.told("challenge")
    assert (challenges[-1]["first"], challenges[-1]["last"]) == (20, 30)
    liar.shows = True
    liar.show()
    world.tick()
    offer = eve.lease(roles=("audit",))
    assert (offer.unit.first, offer.unit.last) == (20, 30), "one interval says who is wrong"
    eve.submit(offer)
    assert world.rows(SubmissionRow, account=liar.name)[0].state == "rejected"


def test_a_late_result_of_what_is_gone_is_not_taken(world):
    liar, bob, eve = world.machine(false=frozenset({0, 10})), world.machine(), world.machine()
    liar.work()
    held = bob.lease()
    look(world, liar, eve, world.machine(), turns=4)
    assert world.rows(SubmissionRow, account=liar.name)[0].state == "rejected"
    assert bob.heartbeat(held).verdict == "stop"
    before = files_of(world.here)
    assert bob.submit(held).status_code in (200, 409)
    keeping.reconsider(world.here)
    assert files_of(world.here) == before
    world.finish([bob, eve])
    assert is_honest(world)


@pytest.mark.parametrize("why", ["gone", "barred"])
def test_a_second_look_is_not_waited_for_where_nobody_is_left(sqlite, tmp_path, why):
    """Who was there when it was drawn may be gone, or shut out, when it should be asked."""
    rules = CALM.model_copy(update={"second": 1.0})
    world = World(tmp_path, sqlite, rules, Plan(trainings=1, steps=20, segment=20))
    ann, bob, *others = (world.machine() for _ in range(4))
    ann.work(roles=("train",))
    world.tick()
    (segment,) = world.rows(SubmissionRow)
    assert segment.facts["audit"]["repeated"]
    if why == "gone":
        world.clock.time += 2 * cases.AWAKE
    else:
        with sqlite.writing() as session:
            for one in others:
                session.add(RecordRow(account=one.name, numerics="0" * 64, verified=0, hard=2))
    world.finish([ann, bob])
    assert is_honest(world)
    holds(world)


def spoiling(module, arguments):
    """The process that makes a canary, as far as a pretended state can be spoilt."""
    Path(arguments[2]).write_bytes(state(b"spoilt!!"))
    return True


def test_an_auditor_who_never_looks_is_found_out_by_canaries(sqlite, tmp_path):
    """One looks like any other audit; whoever finds it good loses what auditing brought, and the run ends."""
    rules = CALM.model_copy(update={"canaries": 0.9999, "first": 100, "strikes": 1, "patience": 1.0})
    world = World(tmp_path, sqlite, rules, Plan(trainings=3, steps=400, segment=400), tools=Tools(spoiling))
    ann, lazy, *others = (world.machine() for _ in range(6))
    lazy.says = "agrees"
    assert [ann.work(roles=("train",)).state for _ in range(3)] == ["checked"] * 3
    states = []
    world.tick()
    ann.show()
    world.tick(0.1)
    world.clock.time += 2.0  # whoever asks may look now
    for _ in range(4):
        offer = lazy.lease(roles=("audit",))
        if offer.kind == "refusal":
            break
        task = world.rows(TaskRow, digest=offer.unit.digest)[0]
        row = world.rows(SubmissionRow, id=task.about)[0]
        ordinary = auditors.question(row, world.unit_of(task.about))
        told = [unit.model_dump(mode="json", exclude={"inputs"}) for unit in (offer.unit, ordinary)]
        assert told[0] == told[1], "but for the bytes of what was committed to nothing tells"
        assert [file.path for file in offer.unit.inputs] == [file.path for file in ordinary.inputs]
        states.append((offer.unit.inputs != ordinary.inputs, lazy.submit(offer).json()["state"]))
    assert (True, "rejected") in states and offer.reason == "banned"
    (failed,) = [one for one in world.told("verdict") if one["check"] == "canary" and one["hard"]]
    assert failed["verdict"] == "fail" and world.escrow(lazy) == 0
    world.finish([ann, *others])
    passed = [one for one in world.told("verdict") if one["check"] == "canary" and one["verdict"] == "pass"]
    tried = sum(len(row.facts.get("canaries", ())) for row in world.rows(SubmissionRow))
    assert len(passed) == tried - 1 and tried <= 3, "once for a segment: else nobody would be left to look"
    assert is_honest(world)
    holds(world)
