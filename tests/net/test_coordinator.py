"""What a coordinator does for workers, over real HTTP messages, on SQLite and on PostgreSQL."""

from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from atoll.net import keeping, protocol
from atoll.net.coordinator import Limits
from atoll.net.judging import advance
from atoll.net.tables import Happening, Outage
from tests.net.crowds import Machine, PretendedPlan, coordinator, expected, files_of, result_of


@pytest.fixture
def here(database, tmp_path):
    return coordinator(database, tmp_path)


def earned(here):
    """Milli-credits by account."""
    book: Any = here.book
    return book.total()


def told(here):
    book: Any = here.book
    return [kind for kind, _ in book.notes]


def happenings(here):
    with here.database.reading() as session:
        return list(session.scalars(select(Happening.kind)))


def test_one_machine_does_it_all(here):
    machine = Machine.of(here)
    receipts = [machine.work() for _ in range(5)]
    assert [one.state for one in receipts] == ["accepted"] * 5 and all(one.canonical for one in receipts)
    assert files_of(here) == expected(here.plan)
    refusal = machine.work()
    assert refusal.reason == "finished" and refusal.sentence and refusal.retry_after_s > 0
    assert earned(here) == {machine.name: 4 * 1000 + 5}
    assert keeping.is_finished(here)


def test_shares_of_data_need_two_accounts(database, tmp_path):
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=2))
    one, other = Machine.of(here), Machine.of(here)
    second_device = Machine.of(here, account=one.account)
    assert [one.work().state for _ in range(2)] == ["checked", "checked"]
    assert one.work().reason == "waiting"
    assert second_device.work().reason == "waiting", "the same account, whatever the device"
    assert other.work().state == "accepted"
    assert other.work().state == "accepted"
    assert earned(here) == {one.name: 200, other.name: 200}
    assert other.work().state == "accepted"
    assert files_of(here) == expected(here.plan)


def test_a_false_share_is_outvoted_by_a_third(database, tmp_path):
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1))
    liar, one, other = (Machine.of(here) for _ in range(3))
    assert liar.submit(liar.lease(), false=True).json()["state"] == "checked"
    assert one.work().state == "checked"
    assert "quorum_disagrees" in happenings(here)
    assert other.work().state == "accepted"
    assert earned(here) == {one.name: 100, other.name: 100}
    assert one.work().state == "accepted"
    assert files_of(here) == expected(here.plan)


def test_two_accounts_are_enough_for_a_share_of_which_one_lost_its_lease(database, tmp_path):
    """The other took over the copy that was lost: whoever lost it makes the one that is left."""
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1))
    one, other = Machine.of(here), Machine.of(here)
    lost = one.lease()
    here.clock.time += 100_000
    keeping.sweep(here)
    taken = other.lease()
    assert taken.unit == lost.unit and taken.fence == 2
    again = one.lease()
    assert again.unit == lost.unit and again.fence == 1, "the other copy"
    assert other.submit(taken).json()["state"] == "checked"
    assert one.submit(again).json()["state"] == "accepted"
    assert earned(here) == {one.name: 100, other.name: 100}


def test_two_accounts_are_enough_if_the_lost_one_hands_in_late(database, tmp_path):
    """Then one account has made both copies, which count once: the other makes a third."""
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1))
    one, other = Machine.of(here), Machine.of(here)
    lost = one.lease()
    here.clock.time += 100_000
    keeping.sweep(here)
    taken, again = other.lease(), one.lease()
    assert one.submit(lost).json()["state"] == one.submit(again).json()["state"] == "checked"
    assert other.submit(taken).json()["state"] == "received", "another result of that copy was first"
    third = other.lease()
    assert third.unit == lost.unit
    assert other.submit(third).json()["state"] == "accepted"
    assert one.lease().unit.name == "end"


def test_machines_that_compute_alike_settle_what_others_do_not_agree_on(database, tmp_path):
    """Two kinds of arithmetic, two results: a third kind is not asked at first."""
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1))
    one, other, third, fourth = (Machine.of(here) for _ in range(4))
    kinds = [protocol.Numerics(capability=name) for name in ("AVX2", "AVX512", "NEON")]
    first, second = one.lease(numerics=kinds[0]), other.lease(numerics=kinds[1])
    assert one.submit(first, numerics=kinds[0]).json()["state"] == "checked"
    assert other.submit(second, numerics=kinds[1], false=True).json()["state"] == "checked"
    refusal = third.lease(numerics=kinds[2])
    assert refusal.reason == "numerics" and "differ" in refusal.sentence
    settled = fourth.lease(numerics=kinds[1])
    assert fourth.submit(settled, numerics=kinds[1], false=True).json()["state"] == "accepted"


def test_after_an_hour_anybody_settles_it(database, tmp_path):
    here = coordinator(database, tmp_path, PretendedPlan(trainings=0, shares=1))
    one, other, third = (Machine.of(here) for _ in range(3))
    assert one.work().state == "checked"
    other.submit(other.lease(), false=True)
    kind = protocol.Numerics(capability="NEON")
    assert third.lease(numerics=kind).reason == "numerics"
    here.clock.time += 3600
    assert third.work(numerics=kind).state == "accepted"


def test_a_request_for_work_made_again_gets_the_same_lease(here):
    machine = Machine.of(here)
    first, again = machine.lease(attempt="x"), machine.lease(attempt="x")
    assert (first.lease, first.unit, first.fence) == (again.lease, again.unit, again.fence)
    assert machine.lease(attempt="y").lease != first.lease


def test_a_result_sent_again_has_the_same_receipt_and_is_credited_once(here):
    machine = Machine.of(here)
    offer = machine.lease()
    receipts = [machine.submit(offer).json() for _ in range(3)]
    assert receipts[0] == receipts[1] == receipts[2]
    assert earned(here) == {machine.name: 1000}


def test_who_falls_silent_loses_the_unit_to_another_who_goes_on_from_the_state_it_left(here):
    lost, other = Machine.of(here), Machine.of(here)
    offer = lost.lease()
    assert lost.progress(offer, 10).json()["state"] == "kept"
    here.clock.time += 901
    keeping.sweep(here)
    assert "holder_suspect" in happenings(here)
    here.clock.time += 3600
    keeping.sweep(here)
    assert "holder_orphaned" in happenings(here)
    taken = other.lease()
    assert taken.unit == offer.unit and taken.fence == 2 and taken.resume.step == 10
    assert lost.heartbeat(offer).verdict == "stop"
    assert other.submit(taken).json()["state"] == "accepted"
    assert earned(here) == {lost.name: 500, other.name: 500}, "each for its steps"


def test_late_work_is_accepted_and_credited_if_nobody_was_faster(here):
    late, other = Machine.of(here), Machine.of(here)
    offer = late.lease()
    here.clock.time += 100_000
    keeping.sweep(here)
    taken = other.lease()
    assert taken.fence == 2
    receipt = late.submit(offer).json()
    assert receipt["state"] == "accepted" and receipt["late"] and receipt["canonical"]
    second = other.submit(taken).json()
    assert second["state"] == "accepted" and not second["canonical"]
    assert earned(here)[late.name] == 1000


def test_a_second_result_is_paid_as_far_as_it_was_told_of_before(here):
    """Who waits for another's result and sends it as its own has told of nothing."""
    honest, thief, fast = (Machine.of(here) for _ in range(3))
    first = honest.lease()
    unit = first.unit
    chain = result_of(unit)[0].chain
    honest.heartbeat(first, step=10, head=chain[1])
    here.clock.time += 100_000
    keeping.sweep(here)
    stolen = thief.lease()
    assert stolen.unit == unit
    here.clock.time += 100_000
    keeping.sweep(here)
    taken = fast.lease()
    assert fast.submit(taken).json()["price"] == 1000
    assert thief.submit(stolen).json()["price"] == 0
    assert honest.submit(first).json()["price"] == 500
    other = Machine.of(here)
    assert other.lease().unit.first == 0, "the other training"


def test_a_unit_that_fails_on_two_machines_is_set_aside_and_nobody_blamed(here):
    one, other = Machine.of(here), Machine.of(here)
    offer = one.lease()
    one.release(offer, failed=True)
    assert one.lease().unit.stage != offer.unit.stage, "not to the machine on which it failed"
    taken = other.lease()
    assert taken.unit == offer.unit
    assert other.release(taken, failed=True).json()["state"] == "quarantined"
    assert "unit_quarantined" in happenings(here)
    assert other.release(taken, failed=True).json()["state"] == "quarantined", "asked again"
    assert Machine.of(here).lease().reason == "waiting"


def test_who_gives_a_lease_back_has_not_failed(here):
    machine = Machine.of(here)
    offer = machine.lease()
    machine.progress(offer, 10)
    assert machine.release(offer).json()["state"] == "open"
    again = machine.lease()
    assert again.unit == offer.unit and again.fence == 2 and again.resume.step == 10
    assert machine.submit(again).json()["price"] == 1000


def test_an_absence_of_the_coordinator_counts_against_nobody(here):
    keeping.pulse(here)
    machine = Machine.of(here)
    offer = machine.lease()
    deadline = machine.heartbeat(offer).deadline
    here.clock.time += 50_000
    assert keeping.pulse(here) == 50_000
    keeping.sweep(here)
    answer = machine.heartbeat(offer)
    assert answer.verdict == "keep" and answer.deadline == deadline + 50_000
    with here.database.reading() as session:
        outage = session.scalars(select(Outage)).one()
    assert outage.until - outage.since == 50_000
    assert "outage" in told(here)


def test_slow_machines_get_less(here):
    machine = Machine.of(here)
    slow = machine.lease(speed=1e9)
    assert slow.unit.last - slow.unit.first == 10 and slow.unit.price == 500
    assert slow.soft_deadline - slow.now == pytest.approx(1e4)
    assert slow.hard_deadline - slow.now == pytest.approx(3e4)
    assert machine.submit(slow).json()["state"] == "accepted"
    fast = machine.lease(speed=1e12, holds=[file.sha256 for file in result_of(slow.unit)[0].outputs])
    assert (fast.unit.first, fast.unit.last) == (10, 30), "it goes on with what it holds"
    assert machine.submit(fast).json()["state"] == "accepted"


def test_reasons_have_a_code_a_sentence_and_a_time(here):
    machine = Machine.of(here)
    refusal = machine.lease(roles=["draw"])
    assert refusal.reason == "role" and "train" in refusal.sentence and refusal.retry_after_s == 60
    few = coordinator(here.database, here.artifacts.scratch.parent, limits=Limits(leases=1))
    poor = Machine.of(few)
    poor.lease()
    assert poor.lease().reason == "limit"
    request = protocol.LeaseRequest(run="0" * 64)
    assert machine.post("/v1/leases", request).json()["reason"] == "other-run"
    assert machine.post("/v1/leases", protocol.LeaseRequest(protocol=2)).json()["reason"] == "update"


def test_what_a_worker_holds_after_a_start(here):
    machine, other = Machine.of(here), Machine.of(here)
    kept, done, foreign, gone = machine.lease(), machine.lease(), other, "0" * 32
    answer = machine.submit(done)
    assert answer.status_code == 200
    held = [(kept, False), (kept, True), (done, True)]
    verdicts = []
    for offer, ready in held:
        message = protocol.Reconcile(
            leases=(protocol.Held(lease=offer.lease, fence=offer.fence, done=ready),)
        )
        verdicts.append(machine.post("/v1/reconcile", message).json()["leases"][offer.lease])
    assert verdicts == ["keep", "submit", "drop"]
    message = protocol.Reconcile(
        leases=(protocol.Held(lease=kept.lease, fence=kept.fence), protocol.Held(lease=gone, fence=1)),
        files=("0" * 64, result_of(done.unit)[0].outputs[0].sha256),
    )
    answer = foreign.post("/v1/reconcile", message).json()
    assert set(answer["leases"].values()) == {"drop"}
    assert list(answer["files"].values()) == ["drop", "keep"]


def test_nobody_touches_anothers_lease_or_files(here):
    machine, other = Machine.of(here), Machine.of(here)
    offer = machine.lease()
    assert other.submit(offer).status_code == 404
    assert other.release(offer).status_code == 404
    result, files = result_of(offer.unit)
    for data in files.values():
        machine.upload(data)
    bad = result.outputs[0].model_copy(update={"path": "expert/1/step-20"})
    for change, code in (
        ({"outputs": (bad,)}, "path"),
        ({"removed": ("end",)}, "path"),
        ({"outputs": (result.outputs[0].model_copy(update={"sha256": "0" * 64}),)}, "missing"),
        ({"unit": "0" * 64}, "unit"),
    ):
        message = protocol.Submission(fence=offer.fence, result=result.model_copy(update=change))
        answer = machine.post(f"/v1/leases/{offer.lease}/submit", message)
        assert answer.status_code == 409 and answer.json()["error"]["code"] == code
    message = protocol.Submission(fence=7, result=result)
    assert machine.post(f"/v1/leases/{offer.lease}/submit", message).json()["error"]["code"] == "fence"


def test_two_processes_with_one_key_are_two_workers(here):
    first = Machine.of(here)
    second = Machine(first.client, first.clock, first.account)
    second.device, second.id = first.device, first.id
    assert second.join().status_code == 200
    mine, other = first.lease(), second.lease()
    assert mine.unit != other.unit
    assert first.submit(mine).json()["state"] == second.submit(other).json()["state"] == "accepted"


def test_a_replayed_request_is_refused_and_a_wrong_clock_is_told_the_right_time(here):
    machine = Machine.of(here)
    sent: list[httpx.Request] = []
    machine.client.event_hooks = {"request": [sent.append]}
    machine.lease()
    machine.client.event_hooks = {"request": []}
    again = machine.client.send(sent[0])
    assert again.status_code == 409 and again.json()["error"]["code"] == "replay"
    for wrong in (7200, -7200):
        answer = machine.send("POST", "/v1/leases", b"{}", now=here.clock.date() + wrong)
        assert answer.status_code == 401
        problem = answer.json()["error"]
        assert problem["code"] == "clock" and problem["now"] == here.clock.date()
        assert machine.send("POST", "/v1/leases", b"{}", now=problem["now"]).status_code == 200


def test_a_delegation_that_expired_is_renewed_by_joining_again(here):
    machine = Machine.of(here)
    here.clock.time += 400 * 86400
    answer = machine.send("POST", "/v1/leases", b"{}")
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "stranger"
    machine.join()
    assert machine.send("POST", "/v1/leases", b"{}").status_code == 200
    thief = Machine(machine.client, machine.clock, Ed25519PrivateKey.generate())
    thief.device, thief.id = machine.device, machine.id
    assert thief.join().status_code == 401, "a device acts for one account"


def test_asking_what_is_ready_twice_changes_nothing(here):
    machine = Machine.of(here)
    machine.lease()
    for _ in range(3):
        advance(here)
    machine.lease()
    assert machine.lease().reason == "waiting"
