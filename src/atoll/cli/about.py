"""What a recipe means and costs, and what this machine has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import AsJson, Overrides, Recipe, app
from atoll.cli.output import tell

if TYPE_CHECKING:
    from atoll.config import Facts
    from atoll.runs import Run


@app.command()
def show(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    data: Annotated[
        bool, typer.Option("--data", help="What the source is taken for, with a sheet of its samples.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The run as the program understands it, and nothing else."""
    if data:
        _show_data(recipe, overrides, as_json)
        return
    resolved = _looked_at(recipe, overrides)[0].config.model_dump(mode="json")
    print(json.dumps(resolved, indent=None if as_json else 2))


def _show_data(recipe: Path, overrides: Sequence[str], as_json: bool) -> None:
    """What the source is taken for, without encoding any of it."""
    from atoll import config
    from atoll.data import preview, summary
    from atoll.runs import runs_folder

    resolved = config.load(recipe, overrides)
    sheet = runs_folder() / resolved.name / "preview.png"
    contents = preview.preview(resolved, sheet)
    tell(
        as_json,
        {"sheet": str(sheet), **contents.facts()},
        "\n".join([*summary.sentences(contents, preview=True), f"Wrote {sheet}"]),
    )


def _looked_at(recipe: Path, overrides: Sequence[str]) -> "tuple[Run, Facts]":
    """The run of a recipe and what is known of its samples, after a look; what cannot work is refused."""
    from atoll import config
    from atoll.data import look
    from atoll.runs import Run, runs_folder

    resolved = config.load(recipe, overrides)
    run = Run(runs_folder() / resolved.name, resolved)
    facts = look.known(run, source=True, note=True)
    config.check(resolved, facts)
    return run, facts


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """FLOPs, memory, bytes and hours of a run, before any are spent."""
    from atoll import plan as room

    run, facts = _looked_at(recipe, overrides)
    planned = room.plan(run.config, facts)
    tell(as_json, planned, room.sentences(planned))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine has, and what it lacks."""
    from atoll.doctor import examine

    findings = examine()
    width = max(len(name) for name in findings)
    tell(as_json, findings, "\n".join(f"{name:{width}}  {value}" for name, value in findings.items()))
