"""What happened to a run, from its log of events: for people, the newest first, and faults apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from atoll.runs import Follower

FAULTS = {"failed", "interrupted", "lost", "lease_lost", "state_gone", "store_fault", "gave_way", "another"}
"""Events that one would rather not have."""
KEPT = 200
HIDDEN = ("time", "event", "by")
WORDS = {
    "making": "run started",
    "finished": "run finished",
    "began": "began",
    "done": "done",
    "failed": "failed",
    "interrupted": "stopped and saved",
    "leased": "taken by a machine",
    "waiting": "waits for another machine",
    "lost": "a machine was lost",
    "lease_lost": "taken over by another machine",
    "another": "another driver is at work",
    "checkpoint": "saved",
    "uploaded": "uploaded",
    "state_gone": "a saved state was gone",
    "store_fault": "the store failed for a moment",
    "gave_way": "another machine was first",
}


class Happening(NamedTuple):
    """One event."""

    time: float
    words: str
    stage: str
    facts: str
    is_fault: bool


class Happenings:
    """Follows the events of one run."""

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self._lines: list[dict[str, Any]] = []
        self.count = 0
        """Of all events so far."""
        self.problems: dict[str, str] = {}
        """Of the stages that failed since the run was last started."""

    def look(self) -> None:
        """Read what is new."""
        anew, lines = self._follower.more()
        if anew:
            self._lines, self.problems, self.count = [], {}, 0
        for line in lines:
            self._note(line)
        self.count += len(lines)
        self._lines = (self._lines + lines)[-KEPT:]

    def _note(self, line: Mapping[str, Any]) -> None:
        kind, stage = line.get("event"), str(line.get("stage", ""))
        if kind == "making":
            self.problems.clear()
        elif kind in ("began", "done"):
            self.problems.pop(stage, None)
        elif kind == "failed" and stage:
            self.problems[stage] = str(line.get("problem", ""))

    def newest(self) -> list[Happening]:
        """All that are kept, the newest first."""
        return [happening(line) for line in reversed(self._lines)]


def happening(line: Mapping[str, Any]) -> Happening:
    """One line of the log, in words; a kind that is not known keeps its name."""
    kind = str(line.get("event", ""))
    stage = str(line.get("stage") or line.get("what") or "")
    hidden = (*HIDDEN, "stage" if line.get("stage") else "what")
    facts = ", ".join(f"{key} {_plain(value)}" for key, value in line.items() if key not in hidden)
    when = line.get("time")
    return Happening(
        float(when) if isinstance(when, int | float) else 0.0,
        WORDS.get(kind, kind.replace("_", " ")),
        stage,
        facts,
        kind in FAULTS,
    )


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
