"""Atoll: one generative model, trained on many islands of compute that never talk to each other."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.python import Finished
    from atoll.sampling.sampler import Sampler

__version__ = "0.1.0"
__all__ = ["load", "run"]


def load(path: str | Path, device: str | None = None, **settings: Any) -> "Sampler":
    """Open a finished run to sample from it: `atoll.load("runs/fashion").sample(num=16)`.

    An exported folder is opened in the same way, and `hub:owner/name` is one on the Hub. `settings` are
    those of the recipe's [sample] section, such as `precision` or `resident`: from then on the defaults.
    """
    from atoll.sampling.opening import open_model  # noqa: PLC0415 - importing atoll must not import torch

    return open_model(path, device, **settings)


def run(recipe: str | Path, **settings: Any) -> "Finished":
    """Train: `atoll.run("recipe.toml", expert={"steps": 100}).sample(num=16)`.

    Every stage that is not done yet is made, as `atoll run` does; `settings` are sections of the recipe, with
    what is to be other than it says, or `on`, `start_over` and `quiet`.
    """
    from atoll import python  # noqa: PLC0415 - importing atoll must not import torch

    return python.run(recipe, **settings)


def __getattr__(name: str) -> Any:
    """`atoll.pipeline` when it is asked for: it imports diffusers, which takes seconds."""
    if name == "pipeline":
        return importlib.import_module("atoll.publish.pipeline")
    raise AttributeError(f"module 'atoll' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What a user has use for, and no more."""
    return ["__version__", "load", "pipeline", "run"]
