"""Atoll: one generative model, trained on many islands of compute that never talk to each other."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.models.ensemble import Ensemble

__version__ = "0.1.0"
__all__ = ["load"]


def load(path: str | Path, device: str | None = None) -> "Ensemble":
    """Open a finished run to sample from it: `atoll.load("runs/fashion").sample(num=16)`."""
    from atoll.sample import load_ensemble  # noqa: PLC0415 - importing atoll must not import torch

    return load_ensemble(Path(path), device)
