"""The run's files by the stages they belong to: looked through once, however many stages ask for theirs.

Every result that is taken asks what can be worked on next, so this must not grow with the square of a run.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from atoll.net.protocol import File
from atoll.runs import STARTED, Run, graph, previews
from atoll.runs.graph import Node

Table = Mapping[str, File]
"""The files of a run by their paths in its folder."""
SOURCE = "source"
"""The folder of what a run reads from outside."""
METRICS, STATE = "metrics.jsonl", "state"
_STEP = re.compile(rf"{STATE}/step-(\d+)\.safetensors")


def folder_of(node: Node) -> str:
    """Where a stage is in its run's folder."""
    return node.stage.path.relative_to(node.run.path).as_posix()


class Shelves:
    """A table of files, sorted."""

    def __init__(self, run: Run, table: Table) -> None:
        self.table = table
        self._own: dict[str, list[str]] = defaultdict(list)
        """By the innermost folder of a stage that they lie in."""
        self._inner: dict[str, list[str]] = defaultdict(list)
        """Folders of stages within those of others."""
        places = {folder_of(node) for node in graph.nodes(run)}
        for place in sorted(places):
            for outer in _above(place):
                self._inner[outer] += [place] if outer in places else []
        for path in table:
            self._own[next((one for one in _above(path) if one in places), "")].append(path)

    def finished(self, node: Node, *, shown: bool = False) -> Iterator[str]:
        """The files of a finished stage without what led to it; what is shown to people where asked for."""
        folder = folder_of(node)
        for path in self._own[folder]:
            name = path.removeprefix(f"{folder}/")
            to_look_at = name == METRICS or name.startswith(f"{previews.FOLDER}/")
            led_to_it = name == STARTED or name.startswith(f"{STATE}/")
            if not led_to_it and (shown or not to_look_at):
                yield path

    def all(self, node: Node) -> Iterator[str]:
        """Whatever there is of a stage, and of those that are made with it."""
        folder = folder_of(node)
        for place in (folder, *self._inner[folder]):
            yield from self._own[place]

    def source(self) -> Iterator[str]:
        """What comes from outside."""
        yield from filter(is_source, self._own[""])

    def step(self, node: Node) -> int:
        """Of the newest state of a training; 0 where it has not begun."""
        folder = folder_of(node)
        states = [_STEP.fullmatch(path.removeprefix(f"{folder}/")) for path in self._own[folder]]
        return max((int(match[1]) for match in states if match is not None), default=0)


def is_source(path: str) -> bool:
    """Whether a file of the table comes from outside."""
    return path.startswith(f"{SOURCE}/")


def _above(path: str) -> Iterator[str]:
    """The folders in which something lies, the innermost first."""
    while path := path.rpartition("/")[0]:
        yield path
