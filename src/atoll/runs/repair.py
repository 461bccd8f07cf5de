"""Which command makes a part of a run again, and that part only."""

import re
from collections.abc import Iterable
from pathlib import Path


def command(folder: Path) -> str | None:
    """The command that makes the stage in this folder; None where the folder is none of a run's."""
    from atoll.runs import graph  # noqa: PLC0415 - which knows stages, which ask here when they are damaged

    for part in _places(folder):
        for kind in (one for one in graph.KINDS if not (one.again or one.adopts)):  # `atoll run` makes those
            match = re.search(f"(^|/){kind.folder.replace('{index:02d}', '([0-9]{2,})')}$", part.as_posix())
            if match is not None:
                maker = next(one for one in graph.KINDS if one.name == (kind.part_of or kind.name))
                word = maker.command or maker.name
                numbered = kind.count is not None and word == kind.name
                return f"atoll {word} {int(match[2])}" if numbered else f"atoll {word}"
    return None


def _places(folder: Path) -> Iterable[Path]:
    """Where a stage may lie that a folder is part of: below its run, the outermost first."""
    from atoll.runs.run import RESOLVED  # noqa: PLC0415

    run = next((one for one in folder.parents if (one / RESOLVED).is_file()), None)
    if run is None:  # taken out of it
        return folder, folder.parent
    inside = folder.relative_to(run).parts
    return (run.joinpath(*inside[:count]) for count in range(1, len(inside) + 1))


def advice(folder: Path) -> str:
    """What to do about a damaged or missing file of a finished stage."""
    made_by = command(folder)
    if made_by is None:
        return f"delete {folder} and make it again"
    return f"`{made_by} RECIPE --start-over` makes this part again, and nothing else"


def unfinished(folder: Path) -> str:
    """What to do about a stage that is not there."""
    return f"`{command(folder) or 'atoll run'} RECIPE` makes it, `atoll run RECIPE` all that is missing"
