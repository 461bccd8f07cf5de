"""What becomes of results: shares of a unit that went from hand to hand, files put in place."""

from hypothesis import given
from hypothesis import strategies as st

from atoll.net import judging
from atoll.net.protocol import File, Numerics, Result, Unit
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
    paid = judging._shares(row, SubmissionRow(account=last, lease="last"), unit, price)
    assert sum(paid.values()) == price and all(amount >= 0 for amount in paid.values())
    if not hands:
        assert paid == {last: price}


def test_files_are_put_in_place_and_what_was_there_is_known(database):
    def result(outputs, removed=()):
        files = tuple(File(path=path, sha256=digit * 64, size=1) for path, digit in outputs)
        return Result(unit="0" * 64, outputs=files, removed=removed, numerics=Numerics())

    with database.writing() as session:
        assert judging.apply(session, result([("a", "1"), ("b", "2")])) == {"a": None, "b": None}
    with database.writing() as session:
        before = judging.apply(session, result([("a", "3")], removed=("b",)))
        assert before == {"a": {"sha256": "1" * 64, "size": 1}, "b": {"sha256": "2" * 64, "size": 1}}
    with database.reading() as session:
        assert {path: file.sha256[0] for path, file in judging.table_of(session).items()} == {"a": "3"}
