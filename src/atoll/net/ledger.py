"""Credit by double entry: integer milli-credits, written once, corrected only by entries of the other sign.

An event is a statement of the log and its postings, made in one transaction. Balances are a projection of the
postings, made by one projector in the order of the log; whoever doubts them adds up the postings again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from sqlalchemy import BigInteger, ForeignKey, Index, String, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from atoll.errors import RunError
from atoll.net import log, statements
from atoll.net.crash import crash_point
from atoll.net.database import Base
from atoll.net.statements import Signer

Bucket = Literal["escrow", "vested", "treasury"]
TREASURY = "treasury"
"""The account that all credit comes from and that forfeited credit goes back to; it alone may be negative."""
LARGEST = 1 << 53
"""Milli-credits of one entry."""


class Entry(NamedTuple):
    """One side of an event: an amount that an account gets (or gives, if negative) in one of its buckets."""

    account: str
    bucket: str
    lineage: str
    """What the work belonged to, such as a stage: escrow of one is not forfeited for another."""
    amount: int


Entries = tuple[Entry, ...]


class Event(Base):
    """Something that moved credit, once."""

    __tablename__ = "ledger_events"

    event: Mapped[str] = mapped_column(String(200), primary_key=True)
    index: Mapped[int] = mapped_column(ForeignKey("log_entries.index"), unique=True)
    """Of its statement in the log."""
    reason: Mapped[str] = mapped_column(String(500))
    submission: Mapped[str | None] = mapped_column(String(64), index=True)
    at: Mapped[float]


class Posting(Base):
    """One entry of an event."""

    __tablename__ = "ledger_postings"

    index: Mapped[int] = mapped_column(ForeignKey("ledger_events.index"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(64))
    bucket: Mapped[str] = mapped_column(String(16))
    lineage: Mapped[str] = mapped_column(String(120))
    amount: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = (Index("ledger_postings_account", "account", "bucket", "lineage"),)


log.append_only(Event)
log.append_only(Posting)


class Balance(Base):
    """What the postings up to the cursor add up to."""

    __tablename__ = "ledger_balances"

    account: Mapped[str] = mapped_column(String(64), primary_key=True)
    bucket: Mapped[str] = mapped_column(String(16), primary_key=True)
    lineage: Mapped[str] = mapped_column(String(120), primary_key=True)
    amount: Mapped[int] = mapped_column(BigInteger)


class Cursor(Base):
    """How far the projector is: every event below this index of the log is in the balances."""

    __tablename__ = "ledger_cursor"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    below: Mapped[int]


def earn(account: str, amount: int, lineage: str) -> Entries:
    """Credit for verified work, in escrow at first."""
    return Entry(TREASURY, "treasury", "", -amount), Entry(account, "escrow", lineage, amount)


def vest(account: str, amount: int, lineage: str) -> Entries:
    """Escrow that was held long enough becomes the account's own."""
    return Entry(account, "escrow", lineage, -amount), Entry(account, "vested", lineage, amount)


def forfeit(account: str, amount: int, lineage: str) -> Entries:
    """Escrow of a lineage that was cheated in goes back."""
    return Entry(account, "escrow", lineage, -amount), Entry(TREASURY, "treasury", "", amount)


def opposite(entries: Iterable[Entry]) -> Entries:
    """What undoes an event; the event itself stays."""
    return tuple(entry._replace(amount=-entry.amount) for entry in entries)


def worth(price: int, done: int, total: int) -> int:
    """Milli-credits for `done` of `total` steps that were committed and verified: linear, rounded down."""
    if not 0 <= done <= total or total <= 0 or price < 0:
        raise RunError(f"{done} of {total} steps at {price} milli-credits is no work that can be paid")
    return price * done // total


def problem(entries: Sequence[Entry]) -> str | None:
    """Why entries cannot be those of one event; None where they can."""
    if not 2 <= len(entries) <= 64:
        return f"it has {len(entries)} entries, not 2 to 64"
    for entry in entries:
        if isinstance(entry.amount, bool) or not isinstance(entry.amount, int):
            return f"{entry.amount!r:.40} is not a whole number of milli-credits"
        if not 0 < abs(entry.amount) <= LARGEST:
            return f"an entry of {entry.amount} milli-credits is none"
        if entry.bucket not in get_args(Bucket) or (entry.bucket == "treasury") != (
            entry.account == TREASURY
        ):
            return f"{entry.account:.20} has no bucket {entry.bucket:.20}"
    total = sum(entry.amount for entry in entries)
    return f"its entries add up to {total}, not 0" if total else None


def post(
    session: Session,
    event: str,
    entries: Iterable[Entry],
    reason: str,
    signer: Signer,
    at: float,
    submission: str | None = None,
) -> int:
    """Write an event and its statement in the transaction of `session`; the index of the statement.

    The same event again changes nothing. No escrow and nothing vested ever becomes negative.
    """
    entries = tuple(entries)
    fault = problem(entries)
    if fault is not None:
        raise RunError(f"event '{event}' of the ledger is refused: {fault}")
    known = session.get(Event, event)
    if known is not None:
        if entries_of(session, known.index) != entries:
            raise RunError(
                f"event '{event}' is in the ledger with other entries; correct it by another event"
            )
        return known.index
    _refuse_negative(session, event, entries)
    facts = {
        "event": event,
        "reason": reason,
        "entries": [list(entry) for entry in entries],
        "submission": submission,
    }
    index = log.append(session, "credit", facts, signer, at)
    record(session, index, event, entries, reason, at, submission)
    crash_point("ledger.post.written")
    return index


def record(
    session: Session,
    index: int,
    event: str,
    entries: Sequence[Entry],
    reason: str,
    at: float,
    submission: str | None,
) -> None:
    """The rows of an event whose statement is in the log."""
    session.add(Event(event=event, index=index, reason=reason, submission=submission, at=at))
    session.flush()
    session.add_all(Posting(index=index, line=line, **entry._asdict()) for line, entry in enumerate(entries))
    session.flush()


def correct(session: Session, event: str, reason: str, signer: Signer, at: float) -> int:
    """Undo an event by its opposite; both stay."""
    wrong = session.get(Event, event)
    if wrong is None:
        raise RunError(f"there is no event '{event}' in the ledger to correct")
    entries = opposite(entries_of(session, wrong.index))
    return post(session, f"correction of {event}"[:200], entries, reason, signer, at, wrong.submission)


def entries_of(session: Session, index: int) -> Entries:
    """The entries of an event."""
    rows = select(Posting).where(Posting.index == index).order_by(Posting.line)
    return tuple(_entry(row) for row in session.scalars(rows))


def balance(session: Session, account: str, bucket: Bucket, lineage: str | None = None) -> int:
    """What an account has, with what the projector has not come to yet; of one lineage, or of all."""
    projected = select(func.coalesce(func.sum(Balance.amount), 0)).where(
        Balance.account == account, Balance.bucket == bucket
    )
    rest = select(func.coalesce(func.sum(Posting.amount), 0)).where(
        Posting.account == account, Posting.bucket == bucket, Posting.index >= _below(session)
    )
    if lineage is not None:
        projected = projected.where(Balance.lineage == lineage)
        rest = rest.where(Posting.lineage == lineage)
    return int(session.scalar(projected) or 0) + int(session.scalar(rest) or 0)


def project(session: Session, most: int = 1000) -> int:
    """Bring balances forward by at most so many events, in the order of the log; how many there were.

    In a transaction in which nobody else writes. Killed anywhere, all of it is done or nothing.
    """
    below = _below(session)
    events = session.scalars(
        select(Event.index).where(Event.index >= below).order_by(Event.index).limit(most)
    ).all()
    if not events:
        return 0
    crash_point("ledger.project.begun")
    rows = select(Posting).where(Posting.index >= below, Posting.index <= events[-1])
    changes: Counter[tuple[str, str, str]] = Counter()
    for row in session.scalars(rows):
        changes[row.account, row.bucket, row.lineage] += row.amount
    for number, (key, amount) in enumerate(sorted(changes.items())):
        line = session.get(Balance, key)
        if line is None:
            session.add(Balance(account=key[0], bucket=key[1], lineage=key[2], amount=amount))
        else:
            line.amount += amount
        if number == 0:
            session.flush()
            crash_point("ledger.project.first")
    session.flush()
    crash_point("ledger.project.applied")
    cursor = session.get(Cursor, 1)
    if cursor is None:
        session.add(Cursor(number=1, below=events[-1] + 1))
    else:
        cursor.below = events[-1] + 1
    session.flush()
    crash_point("ledger.project.moved")
    return len(events)


@dataclass(frozen=True)
class Reconciliation:
    """What the ledger says of itself; all zero and empty when it is in order."""

    difference: int
    """Milli-credits by which balances differ from the sum of their postings."""
    unbalanced: tuple[str, ...]
    """Events whose entries do not add up to zero."""
    duplicates: int
    """Statements of the log that tell of an event that an earlier one told of."""
    untold: int
    """Events without their statement, statements without their event, or with other entries."""
    negative: tuple[str, ...]
    """Buckets other than the treasury's that are below zero."""
    unapplied: int
    """Events that the projector has not come to."""

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong; what is not applied yet is not wrong."""
        return not (self.difference or self.unbalanced or self.duplicates or self.untold or self.negative)


def reconcile(session: Session) -> Reconciliation:
    """Add up everything again, from the statements of the log."""
    below = _below(session)
    sums: Counter[tuple[str, str, str]] = Counter()
    due: Counter[tuple[str, str, str]] = Counter()
    by_event: dict[int, list[Entry]] = {}
    for row in session.scalars(select(Posting).order_by(Posting.index, Posting.line)):
        by_event.setdefault(row.index, []).append(_entry(row))
        sums[row.account, row.bucket, row.lineage] += row.amount
        if row.index < below:
            due[row.account, row.bucket, row.lineage] += row.amount
    balances = {
        (row.account, row.bucket, row.lineage): row.amount for row in session.scalars(select(Balance))
    }
    events = {row.index: row.event for row in session.scalars(select(Event))}
    stated, duplicates = _stated(session)
    written = {index: tuple(entries) for index, entries in by_event.items() if index in events}
    return Reconciliation(
        difference=sum(abs(due[key] - balances.get(key, 0)) for key in {*due, *balances}),
        unbalanced=tuple(events.get(index, "?") for index, entries in by_event.items() if problem(entries)),
        duplicates=duplicates,
        untold=sum(stated.get(index) != written.get(index) for index in {*stated, *written, *events}),
        negative=tuple(" ".join(key) for key, amount in sums.items() if amount < 0 and key[0] != TREASURY),
        unapplied=sum(index >= below for index in events),
    )


def due_to_vest(credits: Sequence[tuple[float, int]], vested: int, keep: int, before: float) -> int:
    """What may leave escrow, of (time, amount): of all but the newest `keep`, and of none after `before`."""
    old = credits[: max(0, len(credits) - keep)]
    return max(0, sum(amount for at, amount in old if at <= before) - vested)


def _stated(session: Session) -> tuple[dict[int, Entries], int]:
    """The events that the log's statements tell of, and how many tell of one again."""
    rows = select(log.Entry.index, log.Entry.envelope).where(log.Entry.kind == "credit")
    stated: dict[int, Entries] = {}
    names: set[str] = set()
    duplicates = 0
    for index, envelope in session.execute(rows.order_by(log.Entry.index)):
        facts = statements.opened(envelope).facts
        duplicates += facts["event"] in names
        names.add(facts["event"])
        stated[index] = tuple(Entry(*entry) for entry in facts["entries"])
    return stated, duplicates


def _refuse_negative(session: Session, event: str, entries: Entries) -> None:
    changes: Counter[tuple[str, str, str]] = Counter()
    for entry in entries:
        changes[entry.account, entry.bucket, entry.lineage] += entry.amount
    for (account, bucket, lineage), amount in changes.items():
        if amount < 0 and account != TREASURY:
            kept = balance(session, account, bucket, lineage)  # type: ignore[arg-type]
            if kept + amount < 0:
                fault = f"{account:.12} has {kept} in {bucket}, not {-amount}"
                raise RunError(f"event '{event}' of the ledger is refused: {fault}")


def _below(session: Session) -> int:
    return session.scalar(select(Cursor.below).where(Cursor.number == 1)) or 0


def _entry(row: Posting) -> Entry:
    return Entry(row.account, row.bucket, row.lineage, row.amount)
