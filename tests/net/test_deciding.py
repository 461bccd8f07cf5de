"""What a decision means: shares of a unit that went from hand to hand."""

from hypothesis import given
from hypothesis import strategies as st

from atoll.net import deciding
from atoll.net.protocol import Unit
from atoll.net.tables import SubmissionRow, TaskRow
from tests.net.crowds import RUN


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=5),
    st.integers(0, 10_000),
    st.sampled_from("abc"),
)
def test_shares_add_up_to_the_price(hands, price, last):
    unit = Unit(run=RUN, name="u", stage="s", role="train", first=0, last=100, every=10)
    shares = [[account, f"lease {number}", step] for number, (account, step) in enumerate(hands)]
    row = TaskRow(micro={"shares": shares})
    paid = deciding._shares(row, SubmissionRow(account=last, lease="last"), unit, price)
    assert sum(paid.values()) == price and all(amount >= 0 for amount in paid.values())
    if not hands:
        assert paid == {last: price}
