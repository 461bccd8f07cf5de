"""What a host says while it serves: machines that came, stages that are there, units set aside."""

import contextlib
from typing import TYPE_CHECKING

from sqlalchemy import select

from atoll.errors import AtollError
from atoll.net import standing, units
from atoll.net.shelves import folder_of
from atoll.net.tables import PathRow
from atoll.net.telling import Tell, counted
from atoll.runs import DONE

if TYPE_CHECKING:
    from atoll.net.host import Hosted


class Narrator:
    """Looks at a run now and then, and tells what is new."""

    def __init__(self, tell: Tell, hosted: "Hosted") -> None:
        self._tell, self._hosted = tell, hosted
        self._stages = {f"{folder_of(node)}/{DONE}": node.name for node in units.stages(hosted.run)}
        self._told: set[str] | None = None
        """Stages that are there, as far as somebody was told."""
        self._machines = self._aside = 0

    def look(self) -> None:
        """Tell what has happened since the last look; a database that is away is asked another time."""
        with contextlib.suppress(AtollError):
            seen, there = standing.standing(self._hosted.coordinator), self._there()
            self._tell_machines(seen)
            self._tell_stages(there)
            words = f"{len(there)} of {len(self._stages)} stages are there"
            free = seen.tasks.get("open", 0) + seen.tasks.get("orphaned", 0)
            working = f"{counted(seen.working, 'machine')} at work, {counted(free, 'unit')} free"
            self._tell.now(f"serving: {words}, {working}")

    def _there(self) -> set[str]:
        """The names of stages that are finished."""
        with self._hosted.coordinator.database.reading() as session:
            paths = session.scalars(select(PathRow.path).where(PathRow.path.in_(self._stages)))
            return {self._stages[path] for path in paths}

    def _tell_machines(self, seen: standing.Standing) -> None:
        if seen.machines > self._machines:
            self._tell.news(f"{counted(seen.machines, 'machine')} joined so far")
        aside = seen.tasks.get("quarantined", 0)
        if aside > self._aside:
            self._tell.news(f"{counted(aside, 'unit')} set aside: see /queue for why")
        self._machines, self._aside = seen.machines, aside

    def _tell_stages(self, there: set[str]) -> None:
        if self._told is None and there:
            self._tell.news(f"going on: {len(there)} of {len(self._stages)} stages are there already")
        elif self._told is not None:
            new = [name for name in self._stages.values() if name in there - self._told]
            for name in new:
                self._tell.news(f"{name} is there ({len(there)} of {len(self._stages)} stages)")
            for name in sorted(self._told - there):
                self._tell.news(f"{name} turned out to be false and is made again")
        self._told = there
