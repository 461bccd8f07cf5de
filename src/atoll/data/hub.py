"""Whether the Hub can be reached at all, asked once and quickly before anything waits for it."""

import importlib
from pathlib import Path
from typing import Any

from atoll.errors import DataError

PATIENCE = 3.0
"""Seconds that one question to the Hub may take."""


def check_reachable(name: str, library: Any = None) -> None:
    """Refuse a dataset of the Hub where there is no network; folders and offline caches need none."""
    hub = library or importlib.import_module("huggingface_hub")  # which `datasets` brings
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
