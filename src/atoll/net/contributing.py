"""Who made a run: verified work by account, added up from what is accepted, stated in the log and signed."""

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from atoll.net import ledger, log, statements
from atoll.net.tables import SubmissionRow, TaskRow
from atoll.runs.contributors import Contributor, Contributors

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

KIND = "contributors"
LONGEST = 30_000
"""Characters of a list that the log holds; a longer one is a file, of which it has the digest."""


def people(session: Session) -> tuple[Contributor, ...]:
    """Accounts with accepted work, the largest credit first."""
    units: dict[str, list[tuple[str, str, bool]]] = defaultdict(list)
    rows = select(SubmissionRow.account, TaskRow.role, TaskRow.stage, SubmissionRow.canonical).join(
        TaskRow, TaskRow.id == SubmissionRow.task
    )
    for account, role, stage, canonical in session.execute(rows.where(SubmissionRow.state == "accepted")):
        units[account].append((role, stage, canonical))
    own = ledger.Posting.bucket.in_(("escrow", "vested"))
    sums = select(ledger.Posting.account, func.sum(ledger.Posting.amount)).where(own)
    credit = {
        account: int(amount) for account, amount in session.execute(sums.group_by(ledger.Posting.account))
    }
    listed = [
        Contributor(
            account=account,
            units=len(done),
            audits=sum(role == "audit" for role, *_ in done),
            credit=credit.get(account, 0),
            stages=tuple(sorted({stage for _, stage, canonical in done if canonical})),
        )
        for account, done in units.items()
    ]
    return tuple(sorted(listed, key=lambda one: (-one.credit, one.account)))


def stated(here: "Coordinator") -> Contributors | None:
    """The list of a finished run, stated once in its log; None where nobody keeps one."""
    signer = here.book.signer
    if signer is None:
        return None
    with here.database.reading() as session:
        known = session.scalars(select(log.Entry.envelope).where(log.Entry.kind == KIND)).first()
        current = Contributors(
            run=here.run, coordinator=signer.public, entries=log.size(session), people=people(session)
        )
    if known is None:
        text = current.model_dump_json(exclude={"statement"})
        facts = {"file": here.artifacts.write(text.encode())} if len(text) > LONGEST else json.loads(text)
        with here.database.writing() as session:
            index = here.book.note(session, KIND, facts, here.clock.date())
            known = session.get_one(log.Entry, index).envelope
    return _read(here, bytes(known))


def _read(here: "Coordinator", envelope: bytes) -> Contributors:
    """The list of a statement, with the statement."""
    tree: dict[str, Any] = dict(statements.opened(envelope).facts)
    if "file" in tree:
        tree = json.loads(here.artifacts.read(str(tree["file"])))
    return Contributors.model_validate_json(json.dumps({**tree, "statement": envelope.decode()}))
