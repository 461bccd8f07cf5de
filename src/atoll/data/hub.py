"""What is on the Hub: whether it can be reached at all, and files and folders of it."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, DataError, reason

HUB = "hub:"
"""What addresses on the Hub begin with."""
PATIENCE = 3.0
"""Seconds that one question to the Hub may take."""


def library(address: str) -> Any:
    """The Hub's library, of the extra `hf`, imported only when something is asked of the Hub."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(f"{address} needs the library huggingface_hub; pip install 'atoll[hf]'") from None


def download(address: str, file: str | None = None, patterns: Sequence[str] | None = None) -> Path:
    """A folder of the Hub, or some files of it, or one, by `hub:owner/name`: where it lies on this disk."""
    hub, name = library(address), address.removeprefix(HUB)
    wanted = {} if patterns is None else {"allow_patterns": list(patterns)}
    try:
        return Path(
            hub.snapshot_download(name, **wanted) if file is None else hub.hf_hub_download(name, file)
        )
    except Exception as error:  # every library of HTTP has a tree of its own
        raise DataError(f"{HUB}{name} cannot be had: {reason(error)}; check its name and access") from None


def check_reachable(name: str, hub: Any = None) -> None:
    """Refuse a dataset of the Hub where there is no network; folders and offline caches need none."""
    if hub is None and importlib.util.find_spec("huggingface_hub") is None:
        return  # who opens the dataset says what is missing
    hub = hub or _with_constants(library(f"{HUB}{name}"))
    if Path(name).expanduser().exists() or hub.constants.HF_HUB_OFFLINE:
        return
    try:
        hub.HfApi().repo_info(name, repo_type="dataset", timeout=PATIENCE)
    except hub.errors.HfHubHTTPError:
        return  # the Hub answers; what it says is told by who opens the dataset
    except Exception as error:  # every library of HTTP has a tree of its own
        raise DataError(
            f"data.source 'hub:{name}': the Hub cannot be reached ({type(error).__name__}); check the "
            "network, or set HF_HUB_OFFLINE=1 to use what is on this disk"
        ) from None


def _with_constants(hub: Any) -> Any:
    """The library with two of its modules, which it does not load by itself."""
    for part in ("constants", "errors"):
        importlib.import_module(f"huggingface_hub.{part}")
    return hub
