"""An epoch's values stated in the log and paid by the ledger, in one transaction; once, however often."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from atoll.errors import ConfigError, RunError
from atoll.net import epochs, facts, filing, host, keeping, ledger, log, statements
from atoll.net.coordinator import Coordinator
from atoll.net.crash import crash_point
from atoll.net.database import Away, Database
from atoll.net.host import Choices, Hosted
from atoll.net.protocol import Manifest, parse
from atoll.net.tables import Setting, SubmissionRow
from atoll.runs import Run, file_digest, graph

WEIGHTS = "weights.safetensors"
KIND, REASON = "epoch", "what parts are worth"


@dataclass(frozen=True)
class Valued:
    """What was measured of the parts of a run."""

    epoch: int
    seed: int
    values: Mapping[int, tuple[float, float]]
    """Of each part by its number: value and standard error."""


def post(run: Run, valued: Valued, choices: Choices) -> dict[str, Any]:
    """Pay an epoch by the ledger of the run's coordinator; the epoch, and what it pays to each account.

    The coordinator may be serving the run meanwhile.
    """
    require_ledger(run, choices)
    with host.opened(run, choices) as hosted:
        here = hosted.coordinator
        paid = pay(here, statement(hosted, valued))
        here.done = keeping.is_finished(here)
        hosted.keep_books()
    accounts: Counter[str] = Counter()
    for entry in paid:
        accounts[entry.account] += entry.amount
    accounts.pop(ledger.TREASURY, None)
    return {"epoch": valued.epoch, "milli_credits": dict(accounts)}


def require_ledger(run: Run, choices: Choices) -> None:
    """ConfigError unless the run was published with this database."""
    place = choices.database or str(run.path / host.FOLDER / "coordinator.db")
    if "://" in place or Path(place).is_file():
        database = Database(place)
        try:
            with database.reading() as session:
                if session.get(Setting, host.MANIFEST) is not None:
                    return
        except (Away, DBAPIError):
            pass  # or it has other tables
        finally:
            database.close()
    raise ConfigError(f"{run.path} has no ledger: it was not hosted here; --key pays by a signed file")


def sentence(posted: Mapping[str, Any]) -> str:
    """What was paid, for a person."""
    total, people = sum(posted["milli_credits"].values()), len(posted["milli_credits"])
    return f"Epoch {posted['epoch']} is in the ledger: {total:,} milli-credits to {people} accounts"


def statement(hosted: Hosted, valued: Valued) -> facts.Epoch:
    """What the log is to say; RunError where other networks or another seed than the run's were taken.

    A part that was added to the run since has nobody with an account here, and is left out.
    """
    run, manifest = hosted.run, parse(Manifest, hosted.manifest.manifest.encode())
    pool, seed = epochs.terms(manifest.resolved)
    if valued.seed != seed:
        raise RunError(f"values were measured with seed {valued.seed}, and the run has published {seed}")
    names = {node.stage.path: node.name for node in graph.made(run)}
    with hosted.coordinator.database.reading() as session:
        table = filing.table_of(session)
    values, networks = {}, {}
    for number, value in valued.values.items():
        stage = run.parts[number].path
        known = table.get((stage / WEIGHTS).relative_to(run.path).as_posix())
        if stage not in names or known is None:
            continue
        if not (stage / WEIGHTS).is_file() or file_digest(stage / WEIGHTS) != known.sha256:
            raise RunError(f"{stage / WEIGHTS} is another network than the run's log knows")
        values[names[stage]], networks[names[stage]] = value, known.sha256
    return facts.Epoch(epoch=valued.epoch, pool=pool, seed=seed, values=values, networks=networks)


def pay(here: Coordinator, epoch: facts.Epoch) -> ledger.Entries:
    """State an epoch and post what it pays; all entries of it. The same again changes nothing."""
    now, signer = here.clock.date(), here.book.signer
    if signer is None:
        raise RunError("this coordinator keeps no books")
    with here.database.writing() as session:
        earlier = stated(session)
        due = len(earlier)
        if epoch in earlier:
            return _posted(session, epoch.epoch)
        if epoch.epoch < due:
            raise RunError(f"epoch {epoch.epoch} was paid by other values; next is --set credit.epoch={due}")
        if epoch.epoch > due:
            raise RunError(f"epoch {due} was not paid yet; --set credit.epoch={due}")
        here.book.note(session, KIND, epoch.model_dump(mode="json"), now)
        events = epochs.events([*earlier, epoch], makers(session))
        crash_point("epoch.stated")
        for name, entries in events.items():
            ledger.post(session, name, entries, REASON, signer, now)
    crash_point("epoch.paid")
    return tuple(entry for entries in events.values() for entry in entries)


def stated(session: Session) -> list[facts.Epoch]:
    """All epochs that the log tells of, in order."""
    rows = select(log.Entry.envelope).where(log.Entry.kind == KIND).order_by(log.Entry.index)
    parsed = (facts.parsed(statements.opened(envelope)) for envelope in session.scalars(rows))
    return [one for one in parsed if isinstance(one, facts.Epoch)]


def makers(session: Session) -> epochs.Makers:
    """Who has earned what by which stage, by work that stands: as `epochs.makers` finds it in a history."""
    rows = (
        select(ledger.Posting.lineage, ledger.Posting.account, func.sum(ledger.Posting.amount))
        .join(ledger.Event, ledger.Event.index == ledger.Posting.index)
        .join(SubmissionRow, SubmissionRow.id == ledger.Event.submission)
        .where(ledger.Posting.bucket == "escrow", ledger.Posting.amount > 0)
        .where(SubmissionRow.state == "accepted", SubmissionRow.canonical)
        .group_by(ledger.Posting.lineage, ledger.Posting.account)
    )
    earned: dict[str, dict[str, int]] = {}
    for stage, account, amount in session.execute(rows):
        earned.setdefault(stage, {})[account] = int(amount)
    return earned


def _posted(session: Session, epoch: int) -> ledger.Entries:
    """The entries of an epoch that was paid."""
    name = f"epoch {epoch}"
    rows = select(ledger.Event.index).where(
        or_(ledger.Event.event == name, ledger.Event.event.startswith(f"{name}, ", autoescape=True))
    )
    indices = session.scalars(rows.order_by(ledger.Event.index)).all()
    return tuple(entry for index in indices for entry in ledger.entries_of(session, index))
