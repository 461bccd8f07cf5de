"""What a job has measured so far, thinned so that a long training fits a page."""

from collections.abc import Iterable, Mapping
from typing import Any

from atoll.runs import Follower

MOST = 400
"""Points of a curve; where there are more, every second one is left out."""
BIN = "loss_t"
"""Begins the names of losses by part of the time."""


class Curve:
    """The lines of one job's metrics: the newest, and enough of the others to draw them."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._forget()

    def _forget(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.newest: dict[str, Any] = {}
        self.first_time = 0.0
        self.count, self._stride = 0, 1

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        anew, lines = self._follower.more()
        if anew:
            self._forget()
        self._add(line for line in lines if "step" in line)
        return anew or bool(lines)

    def _add(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            if not self.count:
                self.first_time = float(line.get("time", 0.0))
            if self.count % self._stride == 0:
                self.lines.append(line)
            self.count, self.newest = self.count + 1, line
            if len(self.lines) > MOST:
                self.lines, self._stride = self.lines[::2], self._stride * 2

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The lines to draw; the newest is always among them."""
        if not self.lines or self.lines[-1]["step"] == self.newest["step"]:
            return self.lines
        return [*self.lines, self.newest]

    @property
    def interval(self) -> float:
        """Seconds between two lines, on average; 0 before there are two."""
        if self.count < 2:
            return 0.0
        return (float(self.newest.get("time", 0.0)) - self.first_time) / (self.count - 1)

    def columns(self) -> dict[str, list[float | None]]:
        """The same by quantity, as a plot takes them; None where a line does not have it."""
        names = dict.fromkeys(name for line in self.shown for name in line if is_drawn(name))
        return {name: [number(line, name) for line in self.shown] for name in ("step", *names)}


def is_drawn(name: str) -> bool:
    """Whether a quantity of a line is one to draw."""
    return name in ("loss", "gradient_norm", "gpu_bytes", "holdout") or name.startswith(BIN)


def number(line: Mapping[str, Any], name: str) -> float | None:
    """A value of a line, if it is a number; files may hold anything."""
    value = line.get(name)
    return float(f"{value:.5g}") if isinstance(value, int | float) else None
