"""Borrowed models: what to say when they cannot be had."""

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import DataError, reason

if TYPE_CHECKING:  # who only looks at a source, as a coordinator does, needs none
    import torch


def arithmetic(precision: str, device: "torch.device") -> str:
    """What was asked for; `auto` never means float16, in which models that others trained overflow."""
    from atoll import devices  # noqa: PLC0415

    chosen = devices.arithmetic(precision, device)
    return "float32" if precision == "auto" and chosen == "float16" else chosen


def require(library: str, key: str) -> Any:
    """Import a library of the extra `hf`, which takes seconds, only when it is asked for."""
    try:
        module = importlib.import_module(library)
    except ImportError:
        raise DataError(f"{key} needs the library {library}; pip install 'atoll[hf]'") from None
    module.utils.logging.set_verbosity_error()  # what matters is said by us, in one line
    module.utils.logging.disable_progress_bar()
    return module


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Say in one line why a model could not be loaded, and let nothing else be said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{what} cannot be loaded: {reason(error)}; give a Hub name or a folder with safetensors"
        ) from None


def is_folder(name: str) -> bool:
    """Whether a model's name is a folder here."""
    return Path(name).expanduser().is_dir()
