"""Books: each call is an entry of the log or an event of the ledger, and asked twice it is one."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from atoll.net import ledger, log
from atoll.net.books import Books
from atoll.net.statements import Signer

BOOKS = Books(Signer(Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32), "ab" * 32))


def earn(session: Session, number: int, amount: int = 10, lineage: str = "expert 1") -> None:
    BOOKS.credit(session, f"earn {number}", "ann", amount, lineage, f"s{number}", float(number))


def test_facts_have_their_places(session):
    assert [BOOKS.note(session, "outage", {"since": 1}, 2.0) for _ in range(3)] == [0, 1, 2]


def test_credit_is_given_once_and_nothing_for_nothing(session):
    for _ in range(2):
        earn(session, 1)
        earn(session, 2, amount=0)
    assert log.size(session) == 1
    assert BOOKS.escrow(session, "ann", "expert 1") == 10


def test_only_the_escrow_of_one_lineage_is_forfeited_and_once(session):
    earn(session, 1)
    earn(session, 2, lineage="expert 2")
    for _ in range(2):
        BOOKS.forfeit(session, "forfeit s1", "ann", "expert 1", "s1", 3.0)
    earn(session, 3)
    BOOKS.forfeit(session, "forfeit s1", "ann", "expert 1", "s1", 3.0)
    assert BOOKS.escrow(session, "ann", "expert 1") == 10
    assert BOOKS.escrow(session, "ann", "expert 2") == 10
    assert ledger.reconcile(session).holds


def test_what_vests_is_all_but_the_newest_and_once(session):
    for number in range(1, 6):
        earn(session, number)
    for _ in range(2):
        BOOKS.vest(session, "ann", "expert 1", keep=2, before=9.0, at=9.0)
    assert ledger.balance(session, "ann", "vested") == 30
    assert BOOKS.vest(session, "ann", "expert 1", keep=2, before=9.0, at=9.0) == 0
    BOOKS.forfeit(session, "forfeit", "ann", "expert 1", "s5", 10.0)
    earn(session, 6)
    assert BOOKS.vest(session, "ann", "expert 1", keep=0, before=20.0, at=20.0) == 10
    assert ledger.balance(session, "ann", "vested") == 40
