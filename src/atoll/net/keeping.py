"""What time does to a run: silent holders, the coordinator's own absences, results that wait to be looked at.

Everything here is a loop over the database: it may be killed anywhere, and run by several processes.
"""

import logging
import threading
from collections.abc import Callable

from sqlalchemy import delete, func, or_, select

from atoll.errors import AtollError
from atoll.net import holding, leasing
from atoll.net.coordinator import Coordinator
from atoll.net.crash import crash_point
from atoll.net.database import Away
from atoll.net.filing import table_of
from atoll.net.judging import WAITING, advance
from atoll.net.tables import Happening, LeaseRow, Nonce, Outage, Setting, SubmissionRow, TaskRow, happened

PULSE = "pulse"
EVERY = 10.0
"""Seconds between two signs of life of the coordinator."""
ABSENT = 3.0
"""Times `EVERY` without one: it was away."""
REMEMBERED = 10_000
"""Happenings that are kept for people; what counts is in the log."""
logger = logging.getLogger(__name__)


def pulse(here: Coordinator, every: float = EVERY) -> float:
    """A sign of life; if the last one is long ago nobody is blamed for that time. How long it was."""
    now = here.clock.date()
    with here.database.writing(durable=False) as session:
        row = session.get(Setting, PULSE)
        last = now if row is None else float(row.value["time"])
        if row is None:
            session.add(Setting(name=PULSE, value={"time": now}))
        else:
            row.value = {"time": now}
        gap = now - last
        if gap <= every * ABSENT:
            return 0.0
        for task in session.scalars(select(TaskRow).where(TaskRow.state.in_(leasing.HELD))):
            task.task = leasing.amnesty(task.task, last, now)
        for lease in session.scalars(select(LeaseRow).where(LeaseRow.state == "active")):
            silent = leasing.unheard(lease.heard, last, now)
            lease.deadline += silent
            lease.heard += silent
        session.add(Outage(since=last, until=now))
        happened(session, now, "outage", since=last, until=now)
        here.book.note(session, "outage", {"since": last, "until": now, "reason": "no sign of life"}, now)
    return gap


def sweep(here: Coordinator) -> int:
    """Look after holders that are silent; how many tasks changed."""
    now, changed = here.clock.date(), 0
    overdue = or_(TaskRow.heard < now - here.terms.suspect, TaskRow.deadline < now)
    crash_point("sweep.before-commit")
    with here.database.writing() as session:
        for row in session.scalars(select(TaskRow).where(TaskRow.state.in_(leasing.HELD), overdue)):
            before, after = row.state, leasing.sweep(row.task, now, here.terms)
            if after.state != before:
                row.task = after
                changed += 1
                happened(session, now, f"holder_{after.state}", task=row.name, lease=row.holder)
        session.execute(delete(Nonce).where(Nonce.expires <= now))
        newest = session.scalar(select(func.max(Happening.id))) or 0
        session.execute(delete(Happening).where(Happening.id <= newest - REMEMBERED))
    crash_point("sweep.after-commit")
    return changed


def reconsider(here: Coordinator) -> int:
    """Look at results that wait: for the beacon, for auditors, or because the coordinator was killed."""
    with here.database.reading() as session:
        rows = select(SubmissionRow.id).order_by(SubmissionRow.number)
        waiting = list(session.scalars(rows.where(SubmissionRow.state.in_(WAITING))))
        if here.judge.police is not None:  # what is accepted and not final is looked at once more
            owed = select(TaskRow.candidate).where(TaskRow.role == "train", TaskRow.state == "accepted")
            waiting += session.scalars(rows.where(SubmissionRow.id.in_(owed)))
    for number in waiting:
        here.judge.consider(here, number)
    return len(waiting)


def is_finished(here: Coordinator) -> bool:
    """Whether every file of the run is there, and nothing is disputed."""
    with here.database.reading() as session:
        table = table_of(session)
        waiting = session.scalar(
            select(func.count()).where(
                SubmissionRow.state.in_(("received", "checked")), SubmissionRow.canonical
            )
        )
    return here.plan.finished(table) and not waiting


class Keeper:
    """Does all of it again and again, in a thread of its own; a database that is away is asked again."""

    def __init__(
        self, here: Coordinator, every: float = EVERY, also: Callable[[], object] = lambda: None
    ) -> None:
        self._here, self._every, self._also = here, every, also
        self._ended, self._care = threading.Event(), holding.Care()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> None:
        """One round."""
        pulse(self._here, self._every)
        sweep(self._here)
        reconsider(self._here)
        advance(self._here)
        self._also()
        self._here.faults.write(self._here.database, self._here.clock.date())
        self._care.look(self._here)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.tick()
            except Away as error:
                self._here.faults.note("database_away")
                logger.warning("%s; asking again", error)
            except AtollError as error:
                logger.warning("%s", error)
            self._here.clock.wait(self._ended, self._every)
