"""What a recipe means and costs, and what this machine has."""

import json

from atoll.cli.options import AsJson, Overrides, Recipe, app
from atoll.cli.output import tell


@app.command()
def show(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """The run as the program understands it, and nothing else."""
    from atoll import config

    resolved = config.load(recipe, overrides).model_dump(mode="json")
    print(json.dumps(resolved, indent=None if as_json else 2))


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """FLOPs, memory, bytes and hours of a run, before any are spent."""
    from atoll import config
    from atoll import plan as room
    from atoll.runs import Run, runs_folder

    resolved = config.load(recipe, overrides)
    data = Run(runs_folder() / resolved.name, resolved).data
    found = room.plan(resolved, data.contents if data.done else None)
    tell(as_json, found, room.sentences(found))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine has, and what it lacks."""
    from atoll.doctor import examine

    findings = examine()
    width = max(len(name) for name in findings)
    tell(as_json, findings, "\n".join(f"{name:{width}}  {value}" for name, value in findings.items()))
