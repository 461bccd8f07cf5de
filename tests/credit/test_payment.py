import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.credit import payment
from atoll.credit.payment import Account
from atoll.net import ledger


def test_an_epoch_by_hand():
    epoch = payment.settle(
        100.0,
        {"a": (3.0, 1.0), "b": (1.5, 0.5), "c": (0.5, 1.0)},
        {"a": 1.0, "b": 3.0, "c": 0.0},
        {"a": Account(smoothed=1.0)},
    )
    a, b = 0.8 * 1.0 + 0.2 * 2.0, 0.2 * 1.0
    assert epoch.accounts["a"].smoothed == pytest.approx(a)
    assert epoch.pay["a"] == pytest.approx(30 * 0.25 + 70 * a / (a + b))
    assert epoch.pay["b"] == pytest.approx(30 * 0.75 + 70 * b / (a + b))
    assert epoch.pay["c"] == 0.0


def test_three_epochs_of_harm_end_a_part_and_one_good_one_forgives():
    accounts = {"a": Account()}
    caps = []
    for value in (-2.0, -2.0, 0.0, -2.0, -2.0, -2.0):
        accounts = dict(payment.settle(1.0, {"a": (value, 1.0)}, {"a": 1.0}, accounts).accounts)
        caps.append((accounts["a"].cap, accounts["a"].strikes))
    assert caps == [(0.5, 1), (0.25, 2), (0.25, 0), (0.125, 1), (0.0625, 2), (0.0, 3)]


values = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(-5, 5), st.floats(0, 2)), min_size=1)


@given(values, st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 10)))
def test_no_more_than_the_pool_and_never_less_than_nothing(worth, uptime):
    epoch = payment.settle(10.0, worth, uptime, {})
    assert all(pay >= 0 for pay in epoch.pay.values())
    assert sum(epoch.pay.values()) <= 10.0 * (1 + 1e-9)


def test_splitting_up_does_not_pay():
    """Linear: two halves of a part are paid what the part was."""
    one = payment.settle(1.0, {"a": (2.0, 0.0), "b": (2.0, 0.0)}, {}, {}, flat=0.0)
    two = payment.settle(1.0, {"a1": (1.5, 0.0), "a2": (0.5, 0.0), "b": (2.0, 0.0)}, {}, {}, flat=0.0)
    assert two.pay["a1"] + two.pay["a2"] == pytest.approx(one.pay["a"])


def test_royalties_undo_inflated_displays():
    honest = payment.royalties(1.0, [0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    inflated = payment.royalties(1.0, [0.8, 0.2], [0.5, 0.5], [0.8, 0.2])
    assert honest == inflated == [0.5, 0.5]
    assert payment.royalties(1.0, [1.0, 0.0], [0.0, 0.0], [0.5, 0.5]) == [0.0, 0.0]


def test_postings_are_events_that_the_ledger_takes():
    pay = {f"expert {k}": 0.1234567 * k for k in range(130)}
    events = payment.postings(pay, "run/0")
    for event in events:
        assert ledger.problem([ledger.Entry(*entry) for entry in event]) is None
    paid = {entry[0]: entry[3] for event in events for entry in event[1:]}
    assert set(paid) == {name for name, value in pay.items() if value}
    assert all(0 <= 1000 * pay[name] - amount < 1 for name, amount in paid.items())
    assert payment.postings({"expert 0": 0.0}, "run/0") == []
