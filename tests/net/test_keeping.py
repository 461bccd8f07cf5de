"""What time does, and what is caught up with after a crash."""

from atoll.net import keeping
from atoll.net.keeping import Keeper
from atoll.net.tables import Nonce, SubmissionRow
from tests.net.crowds import Machine, coordinator


def test_nonces_are_forgotten_when_their_requests_are_good_no_more(database, tmp_path):
    here = coordinator(database, tmp_path)
    Machine.of(here).lease()
    keeping.sweep(here)
    with database.reading() as session:
        kept = session.query(Nonce).count()
        last = max(row.expires for row in session.query(Nonce))
    assert kept == 2
    here.clock.time += last - here.clock.date() - 1
    keeping.sweep(here)
    with database.reading() as session:
        assert session.query(Nonce).count() == 2
    here.clock.time += 1
    keeping.sweep(here)
    with database.reading() as session:
        assert session.query(Nonce).count() == 0


def test_a_result_that_nobody_looked_at_is_looked_at(database, tmp_path, monkeypatch):
    here = coordinator(database, tmp_path)
    machine = Machine.of(here)
    with monkeypatch.context() as asleep:
        asleep.setattr(type(here.judge), "consider", lambda judge, here, number: None)
        assert machine.work().state == "received"
    assert keeping.reconsider(here) == 1
    assert keeping.reconsider(here) == 0
    with database.reading() as session:
        assert session.query(SubmissionRow).one().state == "accepted"


def test_the_keeper_goes_on_when_the_database_is_away(tmp_path, postgresql):
    from atoll.net.database import Database

    database = Database(postgresql.new(), patience=30)
    database.create()
    here = coordinator(database, tmp_path)
    calls = []
    keeper = Keeper(here, also=lambda: calls.append(1))
    keeper.tick()
    postgresql.stop()
    keeper.start()  # its rounds fail, and are only told of
    postgresql.start()
    keeper.stop()
    keeper.tick()
    assert len(calls) >= 2
    database.close()
