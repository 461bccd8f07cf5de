"""The adversary kit at small size: every cheat is seen, none pays, none gets into a model."""

import hashlib
import statistics

import pytest
import torch

from atoll.net.verification import admission, bands, beacon, bisect, policy, quorum, spoil, updates
from atoll.net.verification.replay import state_hash
from tests.net import adversaries
from tests.net.adversaries import ATTACKS, INTERVALS, Checks, Scheme, World, career

RULES = policy.AuditPolicy()
SEGMENT = 3
"""Which segment is cheated in: the middle of the training."""
FALSE = Checks({}, {}, ("differs",) * INTERVALS, spent=0.0)
"""Work that costs nothing to make and that only a replay sees."""


@pytest.fixture(scope="module")
def world():
    torch.set_num_threads(1)
    return World()


@pytest.fixture(scope="module")
def band(world):
    return adversaries.rounding_band(world)


@pytest.fixture(scope="module")
def checks(world, band):
    """What the checks say of every cheat, each made once."""
    known = adversaries.known(world, 0, SEGMENT)
    return {
        name: adversaries.checked(world, 0, SEGMENT, attack, band, known, (0, 5))
        for name, attack in (("honest", adversaries.honest), *ATTACKS.items())
    }


def test_honest_work_passes_everything(checks):
    assert not checks["honest"].faults
    assert not checks["honest"].doubts
    assert checks["honest"].relative == (0.0,) * INTERVALS


@pytest.mark.parametrize("name", ATTACKS)
def test_a_replay_of_any_interval_sees_it(checks, name):
    assert set(checks[name].judgements) == {"differs"}


def test_what_is_cheap_sees_some_of_them(checks):
    """Admission and gate alone: what it sees is audited, whoever's it is."""
    doubts = {name: set(one.doubts) for name, one in checks.items()}
    assert "changed" in doubts["unchanged weights"]
    assert "copy" in doubts["copy of another's"]
    assert "copy" in doubts["previous update again"]
    assert {"worse", "elsewhere"} <= doubts["wrong cluster"]
    assert "worse" in doubts["averages only"]


def test_weights_compared_as_weights_would_let_unchanged_ones_pass(world):
    """Why updates are compared: within two in a hundred of the right weights, and no work done."""
    states = adversaries.honest(world, 0, SEGMENT).states
    before, after = states[-2], states[-1]
    names = [name for name in after if name.startswith("model/")]
    apart = torch.cat([(before[name] - after[name]).flatten() for name in names]).norm()
    assert apart / torch.cat([after[name].flatten() for name in names]).norm() < 0.02
    assert updates.compare(before, before, after).relative == 1.0


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("trusted", [False, True])
def test_no_cheat_pays_and_none_gets_into_the_model(checks, name, trusted):
    scheme = Scheme(checks[name], trusted)
    careers = [career(scheme, RULES, f"{name}/{trusted}/{seed}") for seed in range(30)]
    assert all(one.caught is not None for one in careers)
    assert [one for one in careers if adversaries.in_the_model(one, RULES)] == []
    assert statistics.fmean(one.profit for one in careers) < 0
    if not trusted:
        assert {one.caught for one in careers} == {1}


@pytest.mark.parametrize("units", [1, 5, 20, 60])
def test_leaving_in_time_does_not_pay_either(units):
    """A trusted account that fakes so many units for nothing and goes; nobody looks before publishing."""
    scheme = Scheme(FALSE, trusted=True, units=units)
    profits = [career(scheme, RULES, f"leaves/{units}/{seed}", release=False).profit for seed in range(1000)]
    assert statistics.fmean(profits) < 0


def test_colluding_auditors_are_outweighed_by_the_escrow():
    """A fifth of all auditors are friends, as many as the policy assumes; publishers trust no auditor."""
    for units in (5, 60):
        scheme = Scheme(FALSE, trusted=True, friends=RULES.collusion, units=units)
        careers = [career(scheme, RULES, f"friends/{seed}", release=False) for seed in range(1000)]
        assert statistics.fmean(one.profit for one in careers) < 0
    careers = [career(scheme, RULES, f"friends/{seed}") for seed in range(200)]
    assert [one for one in careers if adversaries.in_the_model(one, RULES)] == []


def test_an_honest_account_loses_nothing():
    careers = [career(Scheme(adversaries.HONEST), RULES, f"honest/{seed}") for seed in range(20)]
    assert all(one.caught is None and one.vested == 120 for one in careers)


def test_one_poisoned_interval_is_mostly_missed_and_the_size_of_one(world, band):
    """What is not promised: of eight intervals one is replayed, so that one in eight is seen."""
    handed = adversaries.one_interval(world, 0, SEGMENT)
    judgements = [
        adversaries.judged(world, 0, SEGMENT, handed, number, band)[0] for number in range(INTERVALS)
    ]
    assert judgements.count("differs") == 1
    bad = Checks({}, {}, judgements)
    careers = [career(Scheme(bad, trusted=True, units=1), RULES, f"one/{seed}") for seed in range(100)]
    assert 0 < sum(one.caught is not None for one in careers) < 50


def test_honest_until_trusted_then_false_is_found_out_within_the_units_that_are_held():
    scheme = Scheme(FALSE, trusted=True, units=400)
    lengths = [career(scheme, RULES, f"later/{seed}", release=False).caught or 400 for seed in range(300)]
    expected = 1 / (1 - (1 - RULES.floor) * (1 - RULES.everywhere))
    assert statistics.fmean(lengths) == pytest.approx(expected, rel=0.25)
    assert statistics.fmean(lengths) < policy.escrow_units(RULES)


def test_a_lazy_auditor_is_found_by_canaries(world):
    """Whoever says that all is well without looking; and a canary that is looked at is seen."""
    value = [hashlib.sha256(bytes([number])).digest() for number in range(200)]
    caught = next(n for n, one in enumerate(value) if policy.is_canary(RULES, one, "audit"))
    assert caught < 60
    states = adversaries.honest(world, 0, SEGMENT).states
    canary = spoil.spoilt(states[0], states[1], 3)
    handed = adversaries.Handed([states[0], canary], 0.0)
    comparison = adversaries.replayed(world, 0, SEGMENT, handed, 0)
    assert bands.judge(comparison, None, same_class=True) == "inconclusive"
    assert bands.judge(comparison, adversaries.rounding_band(world), same_class=True) == "differs"


def test_a_false_accusation_ends_with_the_accuser(world):
    """An auditor makes up the end of an interval; two others replay it, and bisection finds where."""
    chain = adversaries.honest(world, 0, SEGMENT).committed()
    made_up = [*chain[:5], *(hashlib.sha256(one.encode()).hexdigest() for one in chain[5:])]

    def judge(low: int) -> str:
        state = adversaries.honest(world, 0, SEGMENT).states[low]
        walk = world.steps(0, state, first=adversaries.SPAN * SEGMENT + low * adversaries.EVERY)
        return state_hash(walk.go(adversaries.EVERY))

    assert bisect.parting(chain, made_up) == bisect.Dispute(4, 5)
    assert bisect.settled(chain, made_up, judge) == "auditor"
    verdicts = [policy.Verdict(name, "agrees", True) for name in "bc"]
    outcome = policy.settle([policy.Verdict("liar", "differs", True), *verdicts])
    assert (outcome.state, outcome.contradicted) == ("accepted", ("liar",))


def test_sybils_on_one_machine_neither_audit_nor_outvote_each_other_for_free():
    """Ten keys, one machine: each begins anew, so that all of its units are audited by others by lot."""
    sybils, honest = [f"sybil {n}" for n in range(10)], [f"other {n}" for n in range(40)]
    friendly = 0
    for number in range(500):
        value = hashlib.sha256(str(number).encode()).digest()
        assert policy.audit_rate(RULES, policy.Record()) == 1.0
        friendly += policy.auditors(value, "unit", [*sybils, *honest], sybils[0])[0] in sybils
    assert friendly / 500 == pytest.approx(9 / 49, abs=0.06)
    copies = [quorum.Copy(name, "wrong", "192.0.2") for name in sybils]
    assert quorum.decide(copies, lambda a, b: a.digest == b.digest).canonical is None
    assert not quorum.independent(copies[:1], sybils[1], "192.0.2")


def test_a_sybil_who_copies_another_units_work_is_seen(world):
    """Two keys hand in one training for two experts."""
    states = adversaries.honest(world, 1, SEGMENT).states
    sketch = updates.sketch(states[0], states[-1])
    findings = admission.numbers(
        {"finite": True, "changed": 1.0, "norm": 1.0, "sketch": [1.01 * value for value in sketch]},
        admission.Known(sketches={"expert 1": sketch}),
    )
    assert "copy" in findings.doubts


def test_a_coordinator_cannot_grind_what_is_asked():
    """It may try as many values as it likes: none but the round's own leads to the anchor it published."""
    settings = beacon.ChainBeacon.publish(b"k" * 32, genesis=0.0, rounds=4096)
    chain = beacon.ChainBeacon(b"k" * 32, settings, lambda: 1e9)
    number = settings.round_after(100.0)
    draw = chain.draw(number)
    beacon.check(settings, draw, number)
    for attempt in range(200):
        ground = beacon.Draw(round=number, value=hashlib.sha256(str(attempt).encode()).hexdigest())
        with pytest.raises(beacon.BeaconError):
            beacon.check(settings, ground, number)
    for other in (number - 1, number + 1):  # nor one of another round, which it would like better
        moved = chain.draw(other)
        with pytest.raises(beacon.BeaconError):
            beacon.check(settings, moved, number)
        with pytest.raises(beacon.BeaconError):
            beacon.check(settings, moved.model_copy(update={"round": number}), number)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (adversaries.Numerics(), adversaries.Numerics(micro_batch=8)),
        (adversaries.Numerics(), adversaries.Numerics("bfloat16")),
    ],
    ids=["other sums", "other precision"],
)
def test_honest_machines_of_other_classes_agree_within_their_band(world, one, other):
    """Bands from one training, held to another; and a cheat beside that band is still seen."""
    band = bands.calibrate(list(adversaries.pairs(world, 0, one, other)))
    apart = list(adversaries.pairs(World(seed=1), 1, one, other))
    judgements = [bands.judge(comparison, band, same_class=False) for comparison in apart]
    assert judgements.count("differs") == 0
    assert judgements.count("agrees") >= len(judgements) - 1
    assert band.usable
    for attack in (adversaries.half_steps, adversaries.own_seed, adversaries.unchanged):
        handed = attack(world, 0, SEGMENT)
        comparison = adversaries.replayed(world, 0, SEGMENT, handed, 2, other)
        assert bands.judge(comparison, band, same_class=False) == "differs"
