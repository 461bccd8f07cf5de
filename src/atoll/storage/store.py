"""What a store is: files by name that several machines share, and what every kind of store promises.

To add a kind of store, write a class with these methods, name its scheme in `open_store`, and run
`tests/contracts/test_stores.py` against it.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import ConfigError
from atoll.storage.clock import CLOCK, Clock

SCHEMES = ("s3", "gs", "az")
PATIENCE = 300.0
"""Seconds for which a store may fail before one gives up, unless launch.patience says otherwise."""


class Event(Protocol):
    """Is called with every fault and every takeover: a kind of event, and facts."""

    def __call__(self, kind: str, /, **facts: Any) -> None:
        """Take note of an event."""


def unheard(kind: str, /, **facts: Any) -> None:
    """An event that nobody takes note of."""


class Store(Protocol):
    """Files by name, `/` between folders.

    Nothing here needs a clock that machines share, nor the time of a file's last change. A file appears whole
    or not at all. A request that fails is made again until patience runs out (`Interrupted`, run me again);
    one that is refused is a `StorageError` at once.
    """

    address: str
    event: Event

    def check(self) -> None:
        """Say at once what is wrong with address or access."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def read(self, name: str) -> bytes | None:
        """A small file, or None where there is none; as much of it as there was when we asked."""

    def read_from(self, name: str, start: int) -> bytes | None:
        """What a small file has from this byte on, and no more is asked for; None where there is none."""

    def read_json(self, name: str) -> Any:
        """A small JSON file, or None where there is none; half of one is asked for again."""

    def write(self, name: str, data: bytes) -> None:
        """A small file, in the place of an earlier one."""

    def create(self, name: str, data: bytes) -> bool:
        """A small file that must not be there yet; False if another one is, with other contents.

        Of many machines that create the same name with contents of their own, one gets True.
        """

    def names(self, under: str = "") -> list[str]:
        """Every file below a folder, in order. Keep such folders small: listing may cost much."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that is not there is no problem."""

    def upload(self, path: Path, name: str) -> None:
        """A file of any size; one of this name and size is not sent again, so names say what is inside."""

    def download(self, name: str, path: Path, sha256: str) -> None:
        """A file of any size, from where an earlier call stopped; checked, then put in place.

        `sha256` may be the beginning of one.
        """


def open_store(
    address: str, patience: float = PATIENCE, event: Event = unheard, clock: Clock = CLOCK
) -> Store:
    """The store at an address: s3://bucket/folder, gs://, az://, or a folder that is mounted."""
    address = check_address(address)
    if "://" not in address:
        from atoll.storage.folder import FolderStore  # noqa: PLC0415 - each kind knows what a store is

        return FolderStore(address, patience, event, clock)
    from atoll.storage.objects import ObjectStore  # noqa: PLC0415

    return ObjectStore(address, patience, event, clock)


def check_address(address: str) -> str:
    """An address without credentials, of a kind that is known; a folder becomes absolute."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        folder = Path(rest if separator else address).expanduser()
        if not folder.is_absolute():
            raise ConfigError(
                f"launch.store '{address}' means another folder on every machine; give all of its path"
            )
        return str(folder.resolve())
    if scheme not in SCHEMES:
        raise ConfigError(f"launch.store '{scheme}://…' is not known; use s3://, gs://, az:// or a folder")
    if "@" in rest or "?" in rest:
        raise ConfigError(
            "launch.store must not hold a key; give s3://bucket/folder and the key by environment variables"
        )
    if not rest.strip("/"):
        raise ConfigError(f"launch.store '{address}' names no bucket; give {scheme}://bucket/folder")
    return f"{scheme}://{rest.strip('/')}"


def address_of(path: str | Path) -> str | None:
    """The address that a path is meant to be, if it is one: as a path it has lost a slash."""
    match = re.match(rf"({'|'.join(SCHEMES)}):/+(.+)", str(path))
    return f"{match[1]}://{match[2]}" if match else None
