"""An expert from elsewhere: another run's, an imported one, the one of an export, here or on the Hub."""

import importlib
from pathlib import Path

from atoll.errors import ConfigError
from atoll.runs.stage import Stage

HUB = "hub:"
"""What addresses on the Hub begin with."""
EXPERTS = ("ensemble/experts", "experts")
"""Where an exported folder and a run have their experts."""


def foreign(address: str) -> Stage:
    """The finished expert that a folder, or a name on the Hub, leads to."""
    folder = _downloaded(address) if address.startswith(HUB) else Path(address).expanduser()
    stage = Stage(folder)
    if stage.done:
        return stage
    inside = [path for name in EXPERTS for path in sorted((folder / name).glob("[0-9]*")) if Stage(path).done]
    if len(inside) == 1:
        return Stage(inside[0])
    if inside:
        raise ConfigError(f"'{address}' has {len(inside)} experts; name the folder of one, as {inside[0]}")
    raise ConfigError(
        f"'{address}' holds no finished expert; give the folder of one that was "
        "trained, or that `atoll import` made"
    )


def is_here(address: str) -> bool:
    """Whether it can be looked at now, on this machine."""
    return address.startswith(HUB) or Path(address).expanduser().is_dir()


def _downloaded(address: str) -> Path:
    """A folder of the Hub, by the room that knows it; only who names one needs it."""
    folder: Path = importlib.import_module("atoll.data.hub").download(address)
    return folder
