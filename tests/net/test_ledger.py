"""The ledger against a second one of dictionaries over random histories; killed anywhere on two databases."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from atoll.errors import RunError
from atoll.net import ledger, log
from atoll.net.database import Base
from atoll.net.ledger import Entry
from atoll.net.statements import Signer
from tests.thorough import often

ROOT = Path(__file__).parents[2]
SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32), "ab" * 32)
DRIVER = """
import os, signal, sys
from tests.net.test_ledger import SIGNER
from atoll.net import ledger
from atoll.net.crash import crash_point
from atoll.net.database import Database

def project():
    database = Database(sys.argv[1])
    while True:
        with database.writing() as session:
            count = ledger.project(session, most=3)
        crash_point("ledger.project.committed")
        if not count:
            return

number = 0
for point in ("begun", "first", "applied", "moved", "committed"):
    for time in (1, 2):
        database = Database(sys.argv[1])
        with database.writing() as session:
            for _ in range(7):
                number += 1
                entries = ledger.earn(f"account {number % 3}", number, "x")
                ledger.post(session, f"e{number}", entries, "", SIGNER, 1.0)
        database.close()
        child = os.fork()
        if not child:
            os.environ["ATOLL_CRASH_AT"] = f"ledger.project.{point}:{time}"
            project()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(f"{point}:{time} was survived: {status}")
project()
"""
"""Lets a projector die at every point, the first and the second time that one passes it; then drains."""


def post(session: Session, event: str, entries, **more) -> int:
    return ledger.post(session, event, entries, "because", SIGNER, 1.0, **more)


def test_credit_goes_from_the_treasury_to_escrow_to_its_owner(session):
    post(session, "a", ledger.earn("ann", 500, "expert 1"))
    post(session, "b", ledger.vest("ann", 200, "expert 1"))
    post(session, "c", ledger.forfeit("ann", 300, "expert 1"))
    assert ledger.balance(session, "ann", "escrow") == 0
    assert ledger.balance(session, "ann", "vested", "expert 1") == 200
    assert ledger.balance(session, "ann", "vested", "expert 2") == 0
    assert ledger.balance(session, ledger.TREASURY, "treasury") == -200


def test_the_same_event_again_changes_nothing(session):
    index = post(session, "a", ledger.earn("ann", 500, ""))
    assert post(session, "a", ledger.earn("ann", 500, "")) == index
    assert log.size(session) == 1
    with pytest.raises(RunError, match="with other entries"):
        post(session, "a", ledger.earn("ann", 501, ""))


def test_a_correction_is_an_event_of_its_own(session):
    post(session, "a", ledger.earn("ann", 500, "x"), submission="s1")
    ledger.correct(session, "a", "it was Bob's", SIGNER, 2.0)
    assert ledger.correct(session, "a", "it was Bob's", SIGNER, 2.0) == 1
    assert ledger.balance(session, "ann", "escrow") == 0
    assert session.scalar(select(func.count()).select_from(ledger.Posting)) == 4
    with pytest.raises(RunError, match="no event 'b'"):
        ledger.correct(session, "b", "", SIGNER, 2.0)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([Entry("ann", "escrow", "", 5), Entry("treasury", "treasury", "", -4)], "add up to 1, not 0"),
        ([Entry("ann", "escrow", "", 0), Entry("treasury", "treasury", "", 0)], "is none"),
        ([Entry("ann", "escrow", "", 0.5), Entry("treasury", "treasury", "", -0.5)], "not a whole number"),
        ([Entry("ann", "escrow", "", True), Entry("treasury", "treasury", "", -1)], "not a whole number"),
        ([Entry("ann", "purse", "", 5), Entry("treasury", "treasury", "", -5)], "has no bucket purse"),
        ([Entry("ann", "treasury", "", 5), Entry("treasury", "treasury", "", -5)], "ann has no bucket"),
        ([Entry("ann", "escrow", "", 1 << 60), Entry("treasury", "treasury", "", -(1 << 60))], "is none"),
        ([], "0 entries"),
        (ledger.vest("ann", 5, "other lineage"), "has 0 in escrow, not 5"),
        (ledger.forfeit("ann", 101, "x"), "has 100 in escrow, not 101"),
    ],
)
def test_what_does_not_balance_or_is_not_there_is_refused(session, entries, reason):
    post(session, "before", ledger.earn("ann", 100, "x"))
    with pytest.raises(RunError, match=reason):
        post(session, "a", entries)
    assert log.size(session) == 1


def test_nobody_changes_or_removes_a_posting(session):
    post(session, "a", ledger.earn("ann", 1, ""))
    for table in ("ledger_postings", "ledger_events"):
        for command in (f"DELETE FROM {table}", f'UPDATE {table} SET "index" = 9'):
            with pytest.raises(DatabaseError, match="append-only"):
                session.execute(text(command))


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.data())
def test_pay_is_linear_in_work_and_parts_never_pay_more_than_the_whole(price, total, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=5)))
    ends = [*cuts, total]
    parts = [end - start for start, end in zip([0, *cuts], ends, strict=True)]
    paid = sum(ledger.worth(price, part, total) for part in parts)
    assert price - len(parts) < paid <= price
    assert ledger.worth(price, total, total) == price
    with pytest.raises(RunError, match="no work"):
        ledger.worth(price, total + 1, total)


def test_what_vests_is_all_but_the_newest():
    credits = [(1.0, 10), (2.0, 20), (3.0, 30), (4.0, 40)]
    assert ledger.due_to_vest(credits, 0, keep=2, before=9.0) == 30
    assert ledger.due_to_vest(credits, 10, keep=2, before=9.0) == 20
    assert ledger.due_to_vest(credits, 0, keep=0, before=2.5) == 30
    assert ledger.due_to_vest(credits, 30, keep=3, before=9.0) == 0
    assert ledger.due_to_vest(credits, 0, keep=9, before=9.0) == 0


class Second:
    """A ledger of dictionaries, which knows no database."""

    def __init__(self) -> None:
        self.sums: Counter[tuple[str, str, str]] = Counter()
        self.events: dict[str, tuple[Entry, ...]] = {}

    def post(self, event: str, entries: tuple[Entry, ...]) -> bool:
        if event in self.events:
            return self.events[event] == entries
        after = self.sums.copy()
        for account, bucket, lineage, amount in entries:
            after[account, bucket, lineage] += amount
        if any(amount < 0 for key, amount in after.items() if key[0] != "treasury"):
            return False
        self.sums, self.events[event] = after, entries
        return True


def random_step(chance: random.Random, number: int) -> tuple[str, tuple[Entry, ...]]:
    account, lineage = chance.choice("ab"), chance.choice(["x", "y"])
    make = chance.choice([ledger.earn, ledger.earn, ledger.vest, ledger.forfeit])
    event = f"event {chance.randrange(number + 1) if chance.random() < 0.2 else number}"
    return event, make(account, chance.choice([1, 5, 10]), lineage)


def test_random_histories_are_what_dictionaries_say(monkeypatch):
    """Events, repeats, refusals, corrections, a projector at any time; ATOLL_HISTORIES asks for more."""
    monkeypatch.setattr(log, "append", _counted)
    chance = random.Random(0)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for _ in range(int(os.environ.get("ATOLL_HISTORIES", often(100, 40)))):
            _history(session, chance)
            session.rollback()
    engine.dispose()


def _counted(session, kind, facts, signer, at) -> int:
    return (session.scalar(select(func.max(ledger.Event.index))) or 0) + 1


def _history(session: Session, chance: random.Random) -> None:
    second = Second()
    for number in range(chance.randrange(1, 9)):
        event, entries = random_step(chance, number)
        if chance.random() < 0.15 and second.events:
            wrong = chance.choice(list(second.events))
            event, entries = f"correction of {wrong}", ledger.opposite(second.events[wrong])
        expected = second.post(event, entries)
        try:
            post(session, event, entries)
            assert expected
        except RunError:
            assert not expected
        if chance.random() < 0.3:
            ledger.project(session, most=chance.randrange(1, 4))
        account, bucket = chance.choice("ab"), chance.choice(["escrow", "vested"])
        whole = sum(second.sums[account, bucket, lineage] for lineage in "xy")
        assert ledger.balance(session, account, bucket) == whole
    while ledger.project(session, most=2):
        pass
    balances = {
        (row.account, row.bucket, row.lineage): row.amount for row in session.scalars(select(ledger.Balance))
    }
    assert +Counter({key: abs(value) for key, value in balances.items()}) == +Counter(
        {key: abs(value) for key, value in second.sums.items()}
    )
    assert sum(balances.values()) == 0
    count = session.scalar(select(func.count()).select_from(ledger.Event))
    assert count == len(second.events)


def test_statements_and_postings_are_reconciled(session):
    for number in range(5):
        post(session, f"e{number}", ledger.earn("ann", number + 1, "x"))
    assert ledger.reconcile(session) == ledger.Reconciliation(0, (), 0, 0, (), 5)
    ledger.project(session)
    assert ledger.reconcile(session) == ledger.Reconciliation(0, (), 0, 0, (), 0)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("UPDATE ledger_balances SET amount = amount + 1 WHERE account = 'ann'", "difference"),
        ('UPDATE ledger_postings SET amount = amount + 1 WHERE line = 0 AND "index" = 1', "unbalanced"),
        ("UPDATE ledger_postings SET account = 'bob' WHERE line = 1 AND \"index\" = 1", "untold"),
        ('DELETE FROM ledger_postings WHERE "index" = 2', "untold"),
        ('UPDATE ledger_postings SET amount = -amount WHERE "index" = 1', "negative"),
    ],
)
def test_every_way_to_falsify_it_is_seen(session, command, field):
    post(session, "first", ledger.earn("bob", 1, "x"))
    post(session, "second", ledger.earn("ann", 10, "x"))
    post(session, "third", ledger.earn("ann", 10, "y"))
    ledger.project(session)
    for table in ("ledger_postings", "ledger_events"):
        for action in ("update", "delete"):
            session.execute(text(f"DROP TRIGGER {table}_no_{action}"))
    session.execute(text(command))
    session.expire_all()
    after = ledger.reconcile(session)
    assert not after.holds
    assert getattr(after, field)


def test_an_event_that_the_log_tells_twice_is_counted(session):
    post(session, "a", ledger.earn("ann", 10, "x"))
    facts = {"event": "a", "reason": "", "entries": [list(one) for one in ledger.earn("ann", 10, "x")]}
    log.append(session, "credit", facts, SIGNER, 2.0)
    after = ledger.reconcile(session)
    assert (after.duplicates, after.untold) == (1, 1)


def test_a_projector_that_is_killed_anywhere_loses_and_doubles_nothing(database):
    subprocess.run([sys.executable, "-c", DRIVER, database.url], cwd=ROOT, check=True)
    expected: Counter[str] = Counter()
    for number in range(1, 71):
        expected[f"account {number % 3}"] += number
    with database.reading() as session:
        assert ledger.reconcile(session) == ledger.Reconciliation(0, (), 0, 0, (), 0)
        for account, amount in expected.items():
            assert ledger.balance(session, account, "escrow") == amount
        balances = session.scalars(select(ledger.Balance).where(ledger.Balance.bucket == "escrow"))
        assert {row.account: row.amount for row in balances} == expected
        assert session.scalar(select(func.count()).select_from(ledger.Event)) == 70
