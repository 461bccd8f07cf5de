"""Runs that lie in stores, by their address: what is needed of one is kept in a cache of this machine.

A run's own folder under `runs/` is never touched, whatever a run elsewhere is called.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from atoll.config import validate
from atoll.errors import RunError
from atoll.runs import RESOLVED, Run, digest, unstamped, write_json
from atoll.storage import parts
from atoll.storage.mirror import MARK, Mirror
from atoll.storage.objects import ENDPOINTS
from atoll.storage.store import address_of, check_address, open_store


def cache_folder() -> Path:
    """Where downloads are kept: $ATOLL_CACHE, or `atoll` in the user's folder of caches."""
    own = os.environ.get("ATOLL_CACHE")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else caches / "atoll"


def store_address(path: str | Path) -> str | None:
    """The address of a run in a store, if this is one: s3://…, or a mounted folder that says so."""
    if (address := address_of(path)) is not None:
        return address
    return str(Path(path).resolve()) if (Path(path) / MARK).is_file() else None


def cached(address: str) -> Path:
    """The folder for a run at an address; the same address on another server is another run."""
    servers = [os.environ.get(name, "") for name in ENDPOINTS] if "://" in address else []
    return cache_folder() / "runs" / digest([address, *servers])[:16] / address.rpartition("/")[2]


def mirrored(address: str, patience: float | None = None) -> Mirror:
    """A run in a store and the folder that is its cache; of its stages nothing is downloaded yet."""
    address = check_address(address)
    tree = open_store(address).read_json(RESOLVED)
    if tree is None:
        raise RunError(
            f"{address} is not a run (no resolved.json); a store holds runs by their names: {address}/NAME"
        )
    where = f"{address}/{RESOLVED}"
    run = Run(cached(address), validate(unstamped(tree, where), where))
    write_json(run.path / RESOLVED, tree)
    return Mirror(run, address, run.config.launch.patience if patience is None else patience)


def download_run(address: str, *, samples: bool = False) -> Path:
    """What sampling needs of a finished run in a store, and its samples at rest if they are wanted too."""
    mirror = mirrored(address)
    mirror.download_networks()
    parts.download(mirror)
    if samples:
        mirror.download_samples()
    return mirror.run.path


@contextlib.contextmanager
def changed_parts(address: str) -> Iterator[Run]:
    """A run in a store whose parts are about to change; when that is done here, it is done there."""
    mirror = mirrored(address)
    mirror.download_networks()
    version = parts.download(mirror)
    yield mirror.run
    parts.upload(mirror, version)


def renew_parts(address: str) -> None:
    """Look again which parts a run in a store has; only what is new is downloaded."""
    parts.download(mirrored(address))
