"""Who was proven false gets no more work, hears why, and what it holds goes to others."""

import pytest

from atoll.net import banning, protocol
from atoll.net.database import Database
from atoll.net.tables import Happening, LeaseRow, RecordRow, TaskRow
from tests.net.policed import CALM, Plan, World, small
from tests.net.test_audits import holds, is_honest, look


@pytest.fixture
def world(tmp_path):
    made = small(tmp_path, CALM.model_copy(update={"strikes": 1}))
    yield made
    made.database.close()


def test_a_proven_liar_gets_no_more_leases_and_hears_why_with_the_proof(world):
    liar, bob, eve = world.machine(false=frozenset({0, 10})), world.machine(), world.machine()
    assert liar.work().state == "checked"
    look(world, liar, bob, eve, turns=4)
    answer = liar.lease()
    (proof,) = [row.statement for row in proofs(world, liar)]
    assert answer.reason == "banned" and f"entries {proof} of the log" in answer.sentence
    assert bob.lease().kind == "lease", "the unit is another's"
    (told,) = world.told("ban")
    assert told["account"] == liar.name and told["verdicts"] == [proof]
    assert [row.kind for row in world.rows(Happening, kind="account_banned")] == ["account_banned"]


def proofs(world, machine):
    with world.database.reading() as session:
        return banning.proofs(session, machine.name)


def test_what_it_holds_goes_to_others_at_once_and_is_not_taken_from_it_later(tmp_path):
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    policy = CALM.model_copy(update={"strikes": 1})
    world = World(tmp_path, database, policy, Plan(trainings=2, steps=20, segment=20))
    liar, bob, eve = world.machine(false=frozenset({0, 10})), world.machine(), world.machine()
    assert liar.work().state == "checked"
    held = liar.lease(roles=("train",))
    look(world, liar, bob, eve, turns=4)
    assert world.rows(LeaseRow, id=held.lease)[0].state == banning.BARRED
    assert world.rows(TaskRow, name=held.unit.name)[0].state == "open"
    late = protocol.Submission(fence=held.fence, result=liar.train(held.unit))
    assert liar.post(f"/v1/leases/{held.lease}/submit", late).json()["error"]["code"] == "banned"
    assert liar.heartbeat(held).verdict == "stop"
    assert liar.release(held).json()["error"]["code"] == "banned"
    world.finish([bob, eve])
    assert is_honest(world)
    holds(world)
    database.close()


def test_one_failure_of_two_is_not_enough_and_soft_ones_are_none(tmp_path):
    world = small(tmp_path)
    assert world.policy.strikes == 2
    liar, bob, eve = world.machine(false=frozenset({0, 10})), world.machine(), world.machine()
    liar.work()
    look(world, liar, bob, eve, turns=4)
    assert [row.hard for row in world.rows(RecordRow, account=liar.name)] == [1]
    assert liar.lease().kind == "lease" and world.told("ban") == []
    with world.database.reading() as session:
        assert banning.reason(session, None, liar.name) == "", "where nobody is audited nobody is shut out"
        assert banning.reason(session, world.here.judge.police, bob.name) == ""
    world.database.close()
