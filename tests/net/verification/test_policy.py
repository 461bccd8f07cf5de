"""Audit rates, escrow and verdicts against sums done by hand and careers played out."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net.verification import policy
from atoll.net.verification.policy import AuditPolicy, Record, Verdict

RULES = AuditPolicy()
ALONE = AuditPolicy(everywhere=0, collusion=0, margin=1)


def value(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_the_first_ten_are_all_audited_then_ever_fewer_down_to_the_floor():
    rates = [policy.audit_rate(RULES, Record(verified, 1e9)) for verified in range(60)]
    assert rates[:10] == [1.0] * 10
    assert rates[10:14] == [1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == RULES.floor


def test_escrow_by_hand():
    """Without colluders and margin: p = 5 % holds 19 units, p = 3 % 33 (32.33 rounded up)."""
    assert policy.escrow_units(ALONE.model_copy(update={"floor": 0.05})) == 19
    assert policy.escrow_units(ALONE.model_copy(update={"floor": 0.03})) == 33
    p = (1 - 0.95 * 0.99) * (0.8 + 0.2 * 0.1 * 0.8)
    assert policy.caught(RULES, 0.05) == pytest.approx(p)
    assert policy.escrow_units(RULES) == math.ceil(1.25 * (1 - p) / p)


@given(
    verified=st.integers(0, 300),
    held=st.floats(0, 100),
    floor=st.floats(0.01, 1),
    collusion=st.floats(0, 0.6),
    everywhere=st.floats(0, 0.2),
)
def test_a_false_unit_never_pays_whatever_the_record(verified, held, floor, collusion, everywhere):
    """Expected gain of one false unit that costs nothing to make: (1 - p) r - p E, never above zero.

    Where nothing is held, p cannot be 1 if some auditors are friends: what is left is what those let through.
    """
    rules = AuditPolicy(floor=floor, collusion=collusion, everywhere=everywhere)
    rate = policy.audit_rate(rules, Record(verified, held))
    p = policy.caught(rules, rate)
    enough = held >= (1 - policy.detection(rules)) / policy.detection(rules)
    if enough:
        assert (1 - p) - p * held <= 1e-9
    else:
        assert rate == 1


def test_an_honest_career_always_has_enough_at_stake():
    """Held units grow one by one; as audits get rarer, what is held stays above what that rate needs."""
    verified = held = 0
    for number in range(400):
        rate = policy.audit_rate(RULES, Record(verified, held))
        if held >= 1:
            assert held >= policy.required_escrow(RULES, rate) / RULES.margin or rate == 1
        verified += policy.audit_of(RULES, Record(verified, held), value(number), "s", 8).due
        held = min(held + 1, policy.escrow_units(RULES))
    assert policy.audit_rate(RULES, Record(verified, held)) < 0.06


def test_a_known_account_with_nothing_at_stake_in_a_lineage_is_audited_as_if_new():
    assert policy.audit_rate(RULES, Record(verified=500, held=0)) == 1.0
    assert policy.audit_rate(RULES, Record(verified=500, held=5)) > 0.2
    assert policy.audit_rate(RULES, Record(verified=500, held=30)) == RULES.floor


def test_audits_come_as_often_as_the_rate_says_and_everywhere():
    record = Record(1000, 1000.0)
    audits = [policy.audit_of(RULES, record, value(number), f"s{number}", 4) for number in range(20_000)]
    share = sum(audit.due for audit in audits) / len(audits)
    expected = 1 - 0.95 * 0.99
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(audits))
    intervals = Counter(audit.interval for audit in audits if audit.due)
    assert set(intervals) == {0, 1, 2, 3}
    assert min(intervals.values()) > 0.7 * max(intervals.values())
    assert {audit.reason for audit in audits} == {
        "",
        "at the account's rate of 0.050",
        "one of the random audits of all",
    }
    repeated = sum(audit.repeated for audit in audits if audit.due) / sum(audit.due for audit in audits)
    assert 0.05 < repeated < 0.15


def test_the_draw_is_of_this_submission_and_of_this_value_alone():
    record = Record(20, 20.0)
    plans = {policy.audit_of(RULES, record, value(7), f"s{number}", 1000).interval for number in range(50)}
    assert len(plans) > 2
    assert policy.audit_of(RULES, record, value(7), "s", 9) == policy.audit_of(
        RULES, record, value(7), "s", 9
    )


def test_doubts_make_sure_of_an_audit():
    audit = policy.audit_of(RULES, Record(1000, 1000.0), value(1), "s", 4, {"norm", "copy"})
    assert audit.due
    assert audit.reason == "odd: copy, norm"


def test_auditors_are_drawn_and_never_the_owner():
    accounts = [f"a{number}" for number in range(8)]
    firsts: Counter[str] = Counter()
    for number in range(2000):
        order = policy.auditors(value(number), "s", accounts, "a3")
        assert sorted(order) == sorted(set(accounts) - {"a3"})
        firsts[order[0]] += 1
    assert min(firsts.values()) > 0.7 * 2000 / 7


def verdicts(*judgements: str) -> list[Verdict]:
    return [Verdict(f"auditor {i}", judgement, True) for i, judgement in enumerate(judgements)]


@pytest.mark.parametrize(
    ("judgements", "repeated", "state", "contradicted"),
    [
        ((), False, "pending", ()),
        (("agrees",), False, "accepted", ()),
        (("agrees",), True, "pending", ()),
        (("agrees", "agrees"), True, "accepted", ()),
        (("differs",), False, "pending", ()),
        (("differs", "differs"), False, "rejected", ()),
        (("differs", "agrees"), False, "pending", ()),
        (("differs", "agrees", "differs"), False, "rejected", ("auditor 1",)),
        (("differs", "agrees", "agrees"), False, "accepted", ("auditor 0",)),
        (("inconclusive",), False, "pending", ()),
        (("inconclusive", "inconclusive"), False, "pending", ()),
        (("inconclusive", "inconclusive", "differs"), False, "redo", ()),
        (("inconclusive", "agrees", "differs"), False, "redo", ()),
        (("inconclusive", "agrees", "agrees"), False, "accepted", ()),
        (("inconclusive", "differs", "differs"), False, "rejected", ()),
    ],
)
def test_verdicts(judgements, repeated, state, contradicted):
    outcome = policy.settle(verdicts(*judgements), repeated=repeated)
    assert (outcome.state, outcome.contradicted) == (state, contradicted)


@given(
    st.lists(st.sampled_from(["agrees", "inconclusive", "differs"]), min_size=1, max_size=6), st.booleans()
)
def test_nobody_is_rejected_on_one_word_and_three_always_decide(judgements, repeated):
    outcome = policy.settle(verdicts(*judgements), repeated=repeated)
    if outcome.state == "rejected":
        assert judgements.count("differs") >= 2
        assert judgements.count("differs") > judgements.count("agrees")
    if len(judgements) >= 3:
        assert outcome.state != "pending"


def test_one_account_judges_once():
    with pytest.raises(ValueError, match="judged twice"):
        policy.settle([Verdict("a", "differs", True), Verdict("a", "differs", True)])


def test_records_after_an_audit():
    record = Record(12, 5.0)
    assert policy.after(record, policy.Outcome("accepted")) == Record(13, 5.0)
    assert policy.after(record, policy.Outcome("rejected")) == Record(0, 5.0)
    assert policy.after(record, policy.Outcome("redo")) == record


def test_canaries_come_as_often_as_they_should():
    share = sum(policy.is_canary(RULES, value(number), "x") for number in range(5000)) / 5000
    assert abs(share - RULES.canaries) < 0.02


def test_vesting_keeps_what_must_be_held():
    units = policy.escrow_units(RULES)
    assert policy.vesting(RULES, units) == 0
    assert policy.vesting(RULES, units + 3) == 3


def test_replaying_at_the_floor_costs_less_than_two_in_a_hundred():
    """(1 - 0.95 * 0.99) * 1.1 / 0.9, over the intervals of a segment."""
    assert policy.overhead(RULES, 1) == pytest.approx(0.0727, abs=1e-3)
    assert policy.overhead(RULES, 8) < 0.02
