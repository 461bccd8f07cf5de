"""Intervals, and what is known of an account in a class of arithmetic."""

from atoll.net import cases
from atoll.net.protocol import Numerics, Unit
from atoll.net.tables import RecordRow

UNIT = Unit(run="e" * 64, name="u", stage="expert 0", role="train", first=20, last=45, every=10)


def test_intervals_cover_a_segment_once():
    spans = [cases.interval_of(UNIT, number) for number in range(3)]
    assert spans == [(20, 30), (30, 40), (40, 45)]


def test_a_record_is_of_an_account_and_a_class(database):
    with database.writing() as session:
        cases.record_row(session, "a" * 64, Numerics()).verified += 2
        assert cases.record_row(session, "a" * 64, Numerics(threads=2)).verified == 0
    with database.reading() as session:
        rows = {(row.account, row.numerics): row.verified for row in session.query(RecordRow)}
    assert rows["a" * 64, Numerics().digest] == 2 and len(rows) == 2
