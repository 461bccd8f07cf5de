"""What is paid out: nothing while it is at stake, everything when the run is final."""

from atoll.net import contributing, ledger, settling
from tests.net.policed import small


def balances(world, who):
    with world.database.reading() as session:
        assert ledger.reconcile(session).holds
        return tuple(ledger.balance(session, who.name, bucket) for bucket in ("escrow", "vested"))


def test_escrow_stays_while_the_run_goes_on_and_is_paid_when_it_is_final(tmp_path):
    world = small(tmp_path)
    ann, bob = world.machine(), world.machine()
    for _ in range(3):
        ann.turn()
        world.tick()
        bob.work(roles=("audit",))
    assert not world.here.done or balances(world, ann)[0]
    before = [sum(balances(world, who)) for who in (ann, bob)]
    if not world.here.done:
        assert settling.settle(world.here) == 0 and balances(world, ann)[1] == 0
    world.finish([ann, bob])
    assert settling.settle(world.here) >= 2
    assert settling.settle(world.here) == 0, "once"
    after = [balances(world, who) for who in (ann, bob)]
    assert [held for held, _ in after] == [0, 0] and all(paid > 0 for _, paid in after)
    assert sum(paid for _, paid in after) >= sum(before)
    listed = contributing.stated(world.here)
    assert {one.account: one.credit for one in listed.people} == {
        ann.name: after[0][1],
        bob.name: after[1][1],
    }
    world.database.close()
