"""Who works on a task: a pure machine of states, in which every rule of leases is one function.

    open ──lease──► leased ──silence──► suspect ──silence──► orphaned ──lease──► leased …
      ▲             ▲ │ │                  │                    │
      │             │ │ └─────── a word of the holder ──────────┘
      ├── release ──┘ └──submit, however late──► submitted ──► checked ──► accepted ──► final
      └───────────────── rejected ────────────────┴──────────────┘
    two machines fail ──► quarantined

A fence rises with every lease. Nobody is asked what time it is: `now` is an argument, in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atoll.errors import AtollError

State = Literal[
    "open", "leased", "suspect", "orphaned", "submitted", "checked", "accepted", "final", "quarantined"
]
FREE: tuple[State, ...] = ("open", "orphaned")
HELD: tuple[State, ...] = ("leased", "suspect", "orphaned")
JUDGED: tuple[State, ...] = ("submitted", "checked")
DONE: tuple[State, ...] = ("accepted", "final")


class LeaseError(AtollError):
    """What was asked for is against the rules of leases; the code says which."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Terms:
    """How long one waits for whom."""

    heartbeat: float = 60.0
    """Seconds between two signs of life of a holder, as long as few hold something."""
    beats: float = 50.0
    """Signs of life a second of all holders together: where there are more, each is heard rarer …"""
    rarest: float = 300.0
    """… but at least once in so many seconds."""
    suspect: float = 900.0
    """Seconds of silence after which a holder is in doubt; nothing is taken from it."""
    lost: float = 3600.0
    """Seconds of silence after which the task may be given to another."""
    slack: float = 3.0
    """Deadlines are this many times the expected duration."""
    least: float = 1800.0
    """Seconds that the shortest lease lasts."""
    failures: int = 2
    """Machines on which a task has to fail until it is the task's own fault."""


@dataclass(frozen=True)
class Task:
    """A unit, or one of the copies of a unit of which several must agree, as far as leases are concerned."""

    state: State = "open"
    fence: int = 0
    """Of the newest lease; 0 before the first."""
    holder: str = ""
    """The newest lease."""
    heard: float = 0.0
    """When its holder was last heard of."""
    deadline: float = 0.0
    candidate: str = ""
    """The submission that is looked at, or was accepted."""
    failed: frozenset[str] = frozenset()
    """Machines on which it failed."""


def interval(holders: int, terms: Terms) -> float:
    """Seconds between two signs of life where so many hold something."""
    return max(terms.heartbeat, min(terms.rarest, holders / terms.beats))


def lease(task: Task, holder: str, now: float, expected: float, terms: Terms) -> Task:
    """Give the task to a machine that will need so many seconds."""
    if task.state not in FREE:
        raise LeaseError("taken", f"the task is {task.state}, not free")
    duration = max(terms.least, terms.slack * expected)
    return replace(
        task, state="leased", fence=task.fence + 1, holder=holder, heard=now, deadline=now + duration
    )


def heartbeat(task: Task, fence: int, now: float) -> Task | None:
    """A holder is heard of; None tells it to stop, because the task is another's or is done."""
    _known(task, fence)
    if task.state not in HELD or fence != task.fence:
        return None
    return replace(task, state="leased", heard=max(now, task.heard))


def release(task: Task, fence: int, machine: str, failed: bool, terms: Terms) -> Task:
    """A holder gives the task back; that is a failure only if it says so."""
    _known(task, fence)
    if task.state not in HELD or fence != task.fence:
        return task
    return _again(replace(task, state="open"), machine if failed else "", terms)


def submit(task: Task, fence: int, submission: str) -> tuple[Task, bool]:
    """A result under a lease, however late; whether it is now the one that is looked at.

    The first result of a task is its candidate, whoever holds the newest lease. Others wait beside it.
    """
    _known(task, fence)
    if task.state not in (*HELD, "open"):
        return task, False
    return replace(task, state="submitted", candidate=submission), True


def judge(
    task: Task,
    submission: str,
    verdict: Literal["checked", "accepted", "rejected"],
    machine: str,
    terms: Terms,
    waiting: Sequence[str] = (),
) -> Task:
    """A verdict on a submission; only that on the candidate changes the task.

    `machine` is whose failure a rejection is, empty where nobody is to blame; `waiting` are submissions that
    came after the candidate and were not rejected: the first of them takes its place.
    """
    if task.state not in JUDGED or submission != task.candidate:
        return task
    if verdict != "rejected":
        return replace(task, state=verdict)
    if waiting:
        return replace(task, state="submitted", candidate=waiting[0], failed=_with(task.failed, machine))
    return _again(replace(task, state="open", candidate=""), machine, terms)


def finalise(task: Task) -> Task:
    """An accepted result that cannot be disputed any more."""
    return replace(task, state="final") if task.state == "accepted" else task


def sweep(task: Task, now: float, terms: Terms) -> Task:
    """What time alone does: silence makes a holder suspect, then lost; so does the deadline."""
    if task.state not in HELD:
        return task
    silence = now - task.heard
    if silence > terms.lost or now > task.deadline:
        return replace(task, state="orphaned")
    return replace(task, state="suspect") if silence > terms.suspect else task


def amnesty(task: Task, since: float, until: float) -> Task:
    """The coordinator was away: that time counts against nobody, but for what was before they were heard."""
    gap = unheard(task.heard, since, until)
    if task.state not in HELD or gap <= 0:
        return task
    return replace(task, heard=task.heard + gap, deadline=task.deadline + gap)


def unheard(heard: float, since: float, until: float) -> float:
    """Seconds of an absence in which a holder could not be heard: none before it was, whoever was away."""
    return max(0.0, until - max(since, heard))


def reopen(task: Task) -> Task:
    """An accepted result that was built on a false one is made again."""
    return replace(task, state="open", candidate="") if task.state in DONE else task


def _known(task: Task, fence: int) -> None:
    if not 1 <= fence <= task.fence:
        raise LeaseError("fence", f"nobody was ever given this task under fence {fence}")


def _again(task: Task, machine: str, terms: Terms) -> Task:
    failed = _with(task.failed, machine)
    state: State = "quarantined" if len(failed) >= terms.failures else "open"
    return replace(task, state=state, failed=failed)


def _with(failed: frozenset[str], machine: str) -> frozenset[str]:
    return failed | {machine} if machine else failed
