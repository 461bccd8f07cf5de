"""Which task a machine gets."""

import pytest

from atoll.net import choosing
from atoll.net.protocol import Capabilities, File, Refusal, Unit
from atoll.net.tables import Account, Device, LeaseRow, TaskRow
from tests.net.crowds import RUN, PretendedPlan

PLAN = PretendedPlan()
STATE = File(path="expert/0/state/step-00000010.safetensors", sha256="5" * 64, size=10**9)


@pytest.fixture
def session(database):
    with database.writing() as session:
        session.add(Account(id="a" * 64, public="", nickname="", created=0.0, number=1))
        session.flush()
        yield session


def device(**changes):
    return Device(**{"id": "d" * 64, "account": "a" * 64, "speed": 0.0, "since": 0.0, **changes})


def add(session, name, role="train", failed=(), row=None, **more):
    unit = Unit(run=RUN, name=name, stage=name, role=role, **more)
    given = {"state": "open", "failed": list(failed), "created": 0.0, "key": name, "copy": 0, **(row or {})}
    task = TaskRow(**given)
    task.describe(unit)
    session.add(task)
    session.flush()
    return task


def choose(session, now=0.0, one=None, **capabilities):
    return choosing.choose(session, one or device(), Capabilities(**capabilities), PLAN, 7200.0, now)


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


def test_a_disk_that_is_too_small_is_told_how_much_it_takes(session):
    add(session, "large", inputs=(STATE.model_copy(update={"size": 3 * 10**9}),))
    refusal = choose(session, disk=10**9)
    assert refusal.reason == "too-little-disk" and "6 GB of disk" in refusal.sentence, (
        "files and as much again"
    )
    assert choose(session, disk=6 * 10**9).row.name == "large"


def test_what_failed_here_goes_elsewhere(session):
    add(session, "odd", failed=["d" * 64])
    assert choose(session).reason == "waiting"
    add(session, "good")
    assert choose(session).row.name == "good"


def test_what_failed_here_is_tried_again_after_a_while_and_soon_where_nobody_else_is(session):
    add(session, "odd", failed=["d" * 64], row={"heard": 1000.0})
    later = 1000.0 + choosing.ALONE
    assert choose(session, later - 1).reason == "waiting"
    assert choose(session, later).row.name == "odd", "nobody else could"
    fields = {"public": "", "expires": 1e9, "created": 0.0, "capabilities": {}}
    session.add(device(id="e" * 64, seen=later, **fields))
    session.flush()
    assert choose(session, later).reason == "waiting", "another may do it"
    assert choose(session, 1000.0 + choosing.AGAIN).row.name == "odd"


def test_what_fits_is_found_however_much_does_not(session, monkeypatch):
    """Among tasks of other roles, too large, failed here, or of one's own account, all of them older."""
    monkeypatch.setattr(choosing, "LOOK", 3)
    for index in range(5):
        add(session, f"train {index}")
        add(session, f"large {index}", role="draw", memory=8 << 30)
        add(session, f"odd {index}", role="draw", failed=["d" * 64])
    add(session, "draw", role="draw")
    assert choose(session, roles=["draw"], memory=4 << 30).row.name == "draw"
    assert choose(session, roles=["audit"]).reason == "role"


def test_large_states_go_to_machines_that_have_been_here_for_long(session):
    """A gigabyte at 8 Mbit/s takes 1,000 seconds."""
    add(session, "segment", inputs=(STATE,), every=10, last=20, row={"created": 50_000.0})
    now = 50_000.0
    fields = {"public": "", "expires": 1e9, "created": 0.0, "capabilities": {}, "seen": 1e9}
    session.add_all(device(id=name * 64, **fields) for name in "ef")  # more than there are tasks
    session.flush()
    young = device(since=now - choosing.STAY * 1000 + 1)
    refusal = choose(session, now, young, up=8.0)
    assert refusal.reason == "waiting" and "longer" in refusal.sentence
    assert choose(session, now, device(since=now - choosing.STAY * 1000), up=8.0).row.name == "segment"
    assert choose(session, now, young, up=8000.0).row.name == "segment", "it sends it in a second"
    assert choose(session, now, young).row.name == "segment", "nobody knows how fast it sends"
    half, needed = now + choosing.GRACE * 500, choosing.STAY * 500
    assert choose(session, half, device(since=half - needed + 1), up=8.0).reason == "waiting"
    assert choose(session, half, device(since=half - needed), up=8.0).row.name == "segment", (
        "nobody better yet"
    )
    later = now + choosing.GRACE * 1000
    assert choose(session, later, device(since=later), up=8.0).row.name == "segment", "nobody better came"


def test_a_training_that_begins_is_as_long_to_send_as_the_plan_says(session):
    """Before there is a state nobody sees its size in a file."""

    class Large(PretendedPlan):
        def state(self, unit):
            return 10**9

    add(session, "segment", every=10, last=20, row={"created": 50_000.0})
    young, able = device(since=50_000.0), Capabilities(up=8.0)
    assert choosing.choose(session, young, able, Large(), 7200.0, 50_000.0).reason == "waiting"
    assert choosing.choose(session, young, able, PLAN, 7200.0, 50_000.0).row.name == "segment"


def test_few_machines_are_not_kept_waiting_for_better_ones(session):
    """Where there is a free task for everybody, half an hour is enough."""
    add(session, "segment", inputs=(STATE,), every=10, last=20, row={"created": 50_000.0})
    now = 50_000.0
    fields = {"public": "", "expires": 1e9, "created": 0.0, "capabilities": {}, "seen": now}
    recent = device(since=now - choosing.AWAKE + 1, **fields)
    session.add(recent)
    session.flush()
    assert choose(session, now, recent, up=8.0).reason == "waiting"
    assert choose(session, now + 1, recent, up=8.0).row.name == "segment"
    session.add(device(id="e" * 64, since=0.0, **fields))
    session.flush()
    assert choose(session, now + 1, recent, up=8.0).reason == "waiting", "another one may be better"


def test_what_takes_long_to_send_lasts_long(session):
    """Else a machine would wait for its connection for most of the time."""
    plan = PretendedPlan(every=1)
    unit = plan._segment("expert 0", 0, 1000, (STATE,)).model_copy(update={"work": 1e15})
    task = add(session, "any")
    task.describe(unit)
    session.flush()

    def steps(**capabilities):
        choice = choosing.choose(
            session, device(), Capabilities(speed=1e9, **capabilities), plan, 1000.0, 1e9
        )
        return choice.unit.last

    assert steps() == 1, "a step takes a thousand seconds, as long as a lease should last"
    assert steps(up=8.0) == choosing.LONG, "and the state as long as a step"


def test_speed_is_learnt_from_real_work():
    unit = Unit(run=RUN, name="a", stage="a", role="train", first=0, last=100, every=10, work=1e12)
    row, lease = TaskRow(micro=None), LeaseRow(id="mine", created=0.0)
    one = device()
    choosing.learn(one, unit, row, lease, 0.5)
    assert one.speed == 0.0, "nothing is learnt from a moment"
    choosing.learn(one, unit, row, lease, 100.0)
    assert one.speed == pytest.approx(1e10)
    row.micro = {"shares": [["a", "other", 40], ["a", "mine", 60]], "micro": {}}
    choosing.learn(one, unit, row, lease, 100.0)
    assert one.speed == pytest.approx(1e10 + (0.6e10 - 1e10) / 3), "the first forty steps were another's"
    asleep = device(capabilities={"speed": 8e10})
    choosing.learn(asleep, unit, TaskRow(micro=None), lease, 1e6)
    assert asleep.speed == pytest.approx(6e10), "no more than a quarter of what was thought"
    choosing.learn(one, unit.model_copy(update={"every": 0}), row, lease, 1.0)
    assert one.speed == pytest.approx(1e10 + (0.6e10 - 1e10) / 3), "nobody knows what other units cost"
