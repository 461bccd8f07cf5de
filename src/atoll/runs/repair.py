"""Which command makes a part of a run again, and that part only."""

from pathlib import Path

MADE_BY = {
    "data": "prepare",
    "partition": "partition",
    "router": "router",
    "student": "student",
    "few-step": "student",
    "drawn": "student",
}
"""The command of each folder of a run that is not an expert's."""


def command(folder: Path) -> str | None:
    """The command that makes the stage in this folder; None where the folder is none of a run's."""
    for part in (folder, folder.parent):
        if part.parent.name == "experts" and part.name.isdecimal():
            return f"atoll expert {int(part.name)}"
        if part.name in MADE_BY:
            return f"atoll {MADE_BY[part.name]}"
    return None


def advice(folder: Path) -> str:
    """What to do about a damaged or missing file of a finished stage."""
    made_by = command(folder)
    if made_by is None:
        return f"delete {folder} and make it again"
    return f"`{made_by} RECIPE --start-over` makes this part again, and nothing else"


def unfinished(folder: Path) -> str:
    """What to do about a stage that is not there."""
    return f"`{command(folder) or 'atoll run'} RECIPE` makes it, `atoll run RECIPE` all that is missing"
