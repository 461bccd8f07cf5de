"""What commands print: one JSON object, or words and progress for a person."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any


def tell(as_json: bool, facts: dict[str, Any], sentence: str) -> None:
    """One JSON object, or a sentence."""
    print(json.dumps(facts) if as_json else sentence)


def tell_stage(as_json: bool, stage: Any) -> None:
    """Where a finished stage is, and what it holds."""
    tell(as_json, {"folder": str(stage.path), **stage.contents.facts()}, f"Done: {stage.path}")


Report = Callable[[str, int, int], None]


@contextlib.contextmanager
def bar(quiet: bool) -> Iterator[Report | None]:
    """A progress bar with rate and time left on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        rich.TextColumn("{task.description:10}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        Rate(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, rich.TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done, total=total)

        yield report


def named(report: Report | None, name: str) -> Callable[[int, int], None] | None:
    """The bar of one name alone."""
    return None if report is None else lambda done, total: report(name, done, total)
