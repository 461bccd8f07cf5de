"""What is paid out, and when: escrow that was held long enough, in the order of the log."""

from typing import TYPE_CHECKING

from sqlalchemy import select

from atoll.net import ledger
from atoll.net.verification import policy

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

BATCH = 1000
"""Events that the projector takes in one transaction."""


def settle(here: "Coordinator") -> int:
    """Bring balances forward and pay out what is due; how many accounts were paid.

    While a run goes on, an account keeps at stake what the policy asks for, and the work of the last days;
    once all of it is final nothing can be disputed, and everything is paid.
    """
    count = 1
    while count:
        with here.database.writing() as session:
            count = ledger.project(session, BATCH)
    police = here.judge.police
    if police is None and not here.done:
        return 0
    keep = 0 if here.done or police is None else policy.escrow_units(police.audit)
    before = here.clock.date() if here.done or police is None else here.clock.date() - police.audit.window
    with here.database.reading() as session:
        held = session.execute(
            select(ledger.Balance.account, ledger.Balance.lineage).where(
                ledger.Balance.bucket == "escrow", ledger.Balance.amount > 0
            )
        ).all()
        due = [pair for pair in held if here.book.due(session, *pair, keep, before)]
    return sum(_paid(here, account, lineage, keep, before) for account, lineage in due)


def _paid(here: "Coordinator", account: str, lineage: str, keep: int, before: float) -> bool:
    with here.database.writing() as session:
        return here.book.vest(session, account, lineage, keep, before, here.clock.date()) > 0
