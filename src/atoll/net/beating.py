"""Signs of life, as many in one transaction as there are: most requests are these.

Whoever comes while others write waits for its turn, and the first to have it writes for all who wait. Nobody
waits for company: a heartbeat that comes alone is written alone. An answer comes after the commit, as always;
that commit is not forced to the disk, so that a machine which loses its power may forget the last moments.
That is harmless: a holder seems to have been silent for as long, which is far less than makes it suspect, and
a nonce that is forgotten lets nobody do more than repeat a sign of life of the last two minutes.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from atoll.errors import AtollError
from atoll.net import callers, leasing
from atoll.net.callers import NONCES, Caller
from atoll.net.database import Base
from atoll.net.protocol import Heartbeat, HeartbeatAnswer
from atoll.net.results import NotYours
from atoll.net.signing import Unsigned
from atoll.net.tables import TASK_FIELDS, LeaseRow, TaskRow

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

GIVEN_AWAY = "it was given to another"
MOST = 200
"""Signs of life in one transaction: others want to write too."""
COUNTED = 60.0
"""Seconds for which a count of holders is good."""
LEASES, TASKS = (Base.metadata.tables[name] for name in ("leases", "tasks"))
KNOWN = select(NONCES.c.key, NONCES.c.nonce).where(
    NONCES.c.key.in_(bindparam("keys", expanding=True)),
    NONCES.c.nonce.in_(bindparam("nonces", expanding=True)),
)
HOLDING = (
    select(
        LeaseRow.id.label("lease"),
        LeaseRow.account,
        LeaseRow.fence.label("lease_fence"),
        LeaseRow.deadline.label("lease_deadline"),
        LeaseRow.task,
        TaskRow.name,
        *(getattr(TaskRow, key) for key in TASK_FIELDS),
    )
    .join(TaskRow, TaskRow.id == LeaseRow.task)
    .where(LeaseRow.id.in_(bindparam("names", expanding=True)))
)
"""Leases by their names, and the tasks that they are of."""
HELD = select(func.count()).where(TaskRow.state.in_(leasing.HELD))
REMEMBERED = insert(NONCES)
LEASE_HEARD = (
    update(LEASES)
    .where(LEASES.c.id == bindparam("lease"))
    .values(
        step=bindparam("at"),
        loss=bindparam("lost"),
        head=bindparam("link"),
        heard=bindparam("now"),
        deadline=bindparam("until"),
        state="active",
    )
)
TASK_HEARD = (
    update(TASKS)
    .where(TASKS.c.id == bindparam("number"))
    .values(state=bindparam("became"), heard=bindparam("moment"))
)


@dataclass(eq=False)
class Beat:
    """One sign of life, and what became of it."""

    caller: Caller
    name: str
    """Of the lease."""
    message: Heartbeat
    answer: HeartbeatAnswer | None = None
    problem: AtollError | None = None

    @property
    def settled(self) -> bool:
        """Whether there is an answer."""
        return self.answer is not None or self.problem is not None


class Beats:
    """All who wait to be heard."""

    def __init__(self) -> None:
        self._guard, self._turn = threading.Lock(), threading.Lock()
        self._waiting: list[Beat] = []
        self._counted, self._held = -1.0, 0

    def hear(self, here: "Coordinator", caller: Caller, name: str, message: Heartbeat) -> HeartbeatAnswer:
        """A holder is still there: whether it may go on, and until when."""
        own = Beat(caller, name, message)
        with self._guard:
            self._waiting.append(own)
        with self._turn:
            while not own.settled:
                self._write(here, own)
        if own.problem is not None:
            raise own.problem
        assert own.answer is not None
        return own.answer

    def seconds(self, here: "Coordinator", session: Session) -> float:
        """From one sign of life to the next: the more hold something, the rarer each is heard."""
        now = here.clock.date()
        if not self._counted <= now < self._counted + COUNTED:
            self._counted, self._held = now, session.scalar(HELD) or 0
        return leasing.interval(self._held, here.terms)

    def _write(self, here: "Coordinator", own: Beat) -> None:
        """The oldest of those who wait; if that fails they hear why, and if we die they try themselves."""
        with self._guard:
            beats, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        try:
            with here.database.writing(durable=False) as session:
                write(here, session, beats, self.seconds(here, session))
        except AtollError as error:
            for beat in beats:
                beat.answer, beat.problem = None, error
        except BaseException:
            with self._guard:
                self._waiting[:0] = [beat for beat in beats if beat is not own]
            raise


def write(here: "Coordinator", session: Session, beats: Sequence[Beat], seconds: float) -> None:
    """Answer them one by one, as if each had come alone; then write down what they say all at once."""
    now = here.clock.date()
    fresh = _once(session, beats)
    names = list({beat.name for beat in fresh})
    rows = {row.lease: row for row in session.execute(HOLDING, {"names": names})} if fresh else {}
    leases, tasks, devices = [], {}, set()
    for beat in fresh:
        row, message = rows.get(beat.name), beat.message
        if row is None or row.account != beat.caller.account:
            beat.problem = NotYours("there is no such lease of yours")
            continue
        try:
            after = _after(row, message, now)
        except leasing.LeaseError as error:
            beat.problem = error
            continue
        terms = {"heartbeat_s": seconds, "now": now}
        if after is None:
            reason = f"{row.name} is {row.state}" if row.fence == message.fence else GIVEN_AWAY
            beat.answer = HeartbeatAnswer(verdict="stop", reason=reason, deadline=row.lease_deadline, **terms)
            continue
        beat.answer = HeartbeatAnswer(verdict="keep", deadline=after.deadline, **terms)
        facts = {"lease": beat.name, "at": message.step, "lost": message.loss, "link": message.head}
        leases.append({**facts, "now": now, "until": after.deadline})
        tasks[row.task] = {"number": row.task, "became": after.state, "moment": after.heard}
        devices.add(beat.caller.device)
    if leases:
        session.execute(LEASE_HEARD, leases)
        session.execute(TASK_HEARD, list(tasks.values()))
        callers.heard(session, sorted(devices), now)


def _once(session: Session, beats: Sequence[Beat]) -> list[Beat]:
    """Those that were not made before; nobody else writes meanwhile."""
    pairs: dict[str, list[str]] = {"keys": [], "nonces": []}
    for beat in beats:
        pairs["keys"].append(beat.caller.signed.key_id)
        pairs["nonces"].append(beat.caller.signed.nonce)
    known = {(row.key, row.nonce) for row in session.execute(KNOWN, pairs)}
    fresh = []
    for beat in beats:
        signed = beat.caller.signed
        if (signed.key_id, signed.nonce) in known:
            beat.problem = Unsigned("replay", "this request was made already; sign a new one")
            continue
        known.add((signed.key_id, signed.nonce))
        fresh.append(beat)
    if fresh:
        rows = [beat.caller.signed for beat in fresh]
        session.execute(
            REMEMBERED, [{"key": one.key_id, "nonce": one.nonce, "expires": one.expires} for one in rows]
        )
    return fresh


def _after(row: Any, message: Heartbeat, now: float) -> leasing.Task | None:
    """The task once its holder is heard; None where it should stop."""
    if row.lease_fence != message.fence:
        raise leasing.LeaseError("fence", f"this lease has fence {row.lease_fence}, not {message.fence}")
    task = leasing.Task(**{key: getattr(row, key) for key in TASK_FIELDS})
    return leasing.heartbeat(task, message.fence, now)
