"""The books of a coordinator: facts go to the log, credit to the ledger, in the transaction of the fact."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import ledger, log
from atoll.net.statements import Signer


@dataclass(frozen=True)
class Books:
    """Log and ledger of one run; every call belongs to the transaction of its session."""

    signer: Signer

    def note(self, session: Session, kind: str, facts: Mapping[str, Any], at: float) -> int:
        """State a fact; the index of its entry."""
        return log.append(session, kind, facts, self.signer, at)

    def credit(
        self,
        session: Session,
        event: str,
        account: str,
        amount: int,
        lineage: str,
        submission: str,
        at: float,
    ) -> None:
        """Milli-credits for accepted work, into escrow; once for every event, nothing for nothing."""
        if amount:
            entries = ledger.earn(account, amount, lineage)
            ledger.post(session, event, entries, "verified work", self.signer, at, submission)

    def forfeit(
        self, session: Session, event: str, account: str, lineage: str, submission: str, at: float
    ) -> None:
        """All that an account holds in escrow of a lineage goes back to the treasury."""
        held = self.escrow(session, account, lineage)
        if held and session.get(ledger.Event, event) is None:
            entries = ledger.forfeit(account, held, lineage)
            ledger.post(session, event, entries, "a hard failure", self.signer, at, submission)

    def escrow(self, session: Session, account: str, lineage: str) -> int:
        """What an account holds in escrow of a lineage."""
        return ledger.balance(session, account, "escrow", lineage)

    def due(self, session: Session, account: str, lineage: str, keep: int, before: float) -> int:
        """What `vest` would pay out."""
        earned = _credits(session, account, lineage)
        gone = sum(amount for _, amount in earned) - self.escrow(session, account, lineage)
        return ledger.due_to_vest(earned, gone, keep, before)

    def vest(self, session: Session, account: str, lineage: str, keep: int, before: float, at: float) -> int:
        """Pay out escrow but for that of the newest `keep` units, and of none after `before`; how much."""
        due = self.due(session, account, lineage, keep, before)
        if due:
            event = f"vest {account[:16]} {lineage} {log.size(session)}"
            ledger.post(
                session, event, ledger.vest(account, due, lineage), "held long enough", self.signer, at
            )
        return due


def _credits(session: Session, account: str, lineage: str) -> list[tuple[float, int]]:
    """What came into escrow of a lineage, in order: (time, amount)."""
    rows = (
        select(ledger.Event.at, ledger.Posting.amount)
        .join(ledger.Event, ledger.Event.index == ledger.Posting.index)
        .where(
            ledger.Posting.account == account,
            ledger.Posting.bucket == "escrow",
            ledger.Posting.lineage == lineage,
            ledger.Posting.amount > 0,
        )
        .order_by(ledger.Posting.index)
    )
    return [(at, amount) for at, amount in session.execute(rows)]
