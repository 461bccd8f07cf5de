"""Where a job leaves pictures of what it can do so far: `previews/step-00001000.png` in its folder."""

import re
from pathlib import Path

FOLDER = "previews"
_NAME = re.compile(r"step-(\d{8,})\.png")


def path_of(folder: Path, step: int) -> Path:
    """The picture after so many steps of the job in this folder."""
    return folder / FOLDER / f"step-{step:08d}.png"


def listed(folder: Path) -> list[tuple[int, Path]]:
    """The pictures that there are, with their steps, in order; each was written whole."""
    files = (folder / FOLDER).iterdir() if (folder / FOLDER).is_dir() else iter(())
    steps = ((_NAME.fullmatch(file.name), file) for file in files)
    return sorted((int(match[1]), file) for match, file in steps if match)
