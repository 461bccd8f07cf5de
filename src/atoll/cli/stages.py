"""`atoll run` and one command per stage."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.options import AsJson, Overrides, Recipe, StartOver, app
from atoll.cli.output import bar, tell, tell_stage

On = Annotated[str, typer.Option(help="Where jobs run: local, ray or slurm.")]


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody writes it
    on: On = "local",
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Make again what was made with other settings, and no more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every stage that is not done yet, from raw samples to a page of pictures."""
    from atoll.launch import driver

    with _opened(recipe, overrides, source=True) as opened:
        known = opened.data.done
        driver.drive(opened, on, screen(as_json), start_over=start_over)
        if not known and not as_json:
            print("\n".join(_words(opened, "run")), file=sys.stderr)
        samples, page = opened.samples, opened.report.path / opened.report.contents.report
        facts = {"run": str(opened.path), "report": str(page), **samples.contents.at(samples.path)}
        tell(as_json, facts, f"Open {page.resolve().as_uri()}")


@app.command()
def prepare(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Raw samples to samples and features at rest."""
    _make(recipe, overrides, start_over, as_json, "prepare")


@app.command()
def partition(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Samples to clusters: which sample belongs to which expert."""
    _make(recipe, overrides, start_over, as_json, "partition")


@app.command()
def start(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train the network on all data from which experts go on alone."""
    _make(recipe, overrides, start_over, as_json, "start")


@app.command()
def shared(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train the network for the low noise of all clusters."""
    _make(recipe, overrides, start_over, as_json, "shared")


@app.command()
def expert(
    index: Annotated[int, typer.Argument(metavar="K", help="Which expert; they are numbered from 0.")],
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train expert K on its cluster, alone."""
    _make(recipe, overrides, start_over, as_json, "expert", index)


@app.command()
def router(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train the router."""
    _make(recipe, overrides, start_over, as_json, "router")


@app.command()
def student(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    site: Annotated[
        int | None, typer.Option(metavar="K", help="Only site K's steps of the round that is due.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Only merge what the sites handed in.")] = False,
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Distil all experts into one model, and into one that needs few steps."""
    if site is None and not merge:
        _make(recipe, overrides, start_over, as_json, "student")
        return
    from atoll.launch import rounds

    with _opened(recipe, overrides) as opened:
        tell_stage(as_json, rounds.site(opened, site) if site is not None else rounds.merge(opened))


def _make(
    recipe: Path,
    overrides: Sequence[str],
    start_over: bool,
    as_json: bool,
    command: str,
    index: int = 0,
) -> None:
    """The stages of one command, here."""
    from atoll.launch import driver
    from atoll.runs import graph

    with _opened(recipe, overrides, source=command == "prepare") as opened:
        nodes = graph.of_command(opened, command, index)
        driver.make(opened, nodes, screen(as_json), start_over=start_over)
        tell_stage(as_json, nodes[-1].stage, _words(opened, command))


def _words(run: Any, command: str) -> list[str]:
    """What a command says besides where its result is: how data was understood, and why it is grouped so."""
    from atoll.config import grouping

    reason = grouping.reason(run.config) if command in ("partition", "run") else None
    understood = _understood(run) if command in ("prepare", "run") else []
    return [*understood, *([reason] if reason else [])]


def _understood(run: Any) -> list[str]:
    """What was understood of the source, in words."""
    from atoll.data import summary

    return [*summary.sentences(run.data.contents), f"look at {run.data.path / summary.SHEET}"]


def screen(as_json: bool) -> Any:
    """Where a person sees what is going on; nowhere, if a program asks."""
    from atoll.launch.driver import Screen
    from atoll.launch.table import watching

    return Screen(lambda: watching(as_json), lambda: bar(as_json))


def _opened(
    recipe: Path, overrides: Sequence[str], *, source: bool = False
) -> contextlib.AbstractContextManager[Any]:
    """The run of a recipe; what cannot work is refused before anything is written or started."""
    from atoll import config
    from atoll.data import look
    from atoll.runs import Run, runs_folder

    resolved = config.load(recipe, overrides)
    known = Run(runs_folder() / resolved.name, resolved)
    config.check(resolved, look.known(known, source=source))
    if source:
        look.require_network(known)
    return Run.begun(resolved, recipe)
