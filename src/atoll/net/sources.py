"""Where a stranger reads a run's history from: its coordinator, a mirror, a bucket, a folder."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import AtollError, ConfigError, CorruptError, StorageError
from atoll.storage.store import Store, open_store

TIMEOUT = 30.0
"""Seconds that one request may take."""
CHUNK = 1 << 20
LARGEST = 64 << 20
"""Bytes of a list that an entry names by its digest."""


class Source(Protocol):
    """The files of a log, and artifacts by what is in them."""

    address: str

    def log(self, name: str) -> bytes | None:
        """A file of the log, None where there is none."""

    def digest(self, sha256: str) -> tuple[str, int] | None:
        """What really is under this digest: its own digest and size; None where nothing is."""

    def save(self, sha256: str, path: Path) -> bool:
        """Bring an artifact to a path; whether it was there and is what it is called."""


def artifact(sha256: str) -> str:
    """The name of an artifact in a store."""
    return f"sha256/{sha256}"


class StoreSource:
    """The artifact store itself: a folder, or a bucket that may be read."""

    def __init__(self, store: Store) -> None:
        self.address, self._store = store.address, store

    def log(self, name: str) -> bytes | None:
        """A file of the log."""
        return self._store.read(f"log/{name}")

    def digest(self, sha256: str) -> tuple[str, int] | None:
        """What is under a digest, read piece by piece from a folder, at once from a bucket."""
        folder = Path(self.address) / artifact(sha256)
        if "://" not in self.address:
            if not folder.is_file():
                return None
            with folder.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest(), folder.stat().st_size
        data = self._store.read(artifact(sha256))
        return None if data is None else (hashlib.sha256(data).hexdigest(), len(data))

    def save(self, sha256: str, path: Path) -> bool:
        """Bring an artifact to a path."""
        try:
            self._store.download(artifact(sha256), path, sha256)
        except (AtollError, FileNotFoundError):
            return False
        return True


class HttpSource:
    """A coordinator, or whoever serves the same files."""

    def __init__(self, url: str) -> None:
        import httpx  # noqa: PLC0415 - a folder is read without it

        self.address = url.rstrip("/")
        self._client = httpx.Client(timeout=TIMEOUT, follow_redirects=True)

    def log(self, name: str) -> bytes | None:
        """A file of the log."""
        import httpx  # noqa: PLC0415

        try:
            answer = self._client.get(f"{self.address}/log/{name}")
        except httpx.HTTPError as error:
            raise StorageError(
                f"{self.address} does not answer ({type(error).__name__}); try again"
            ) from None
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise StorageError(f"{self.address}/log/{name}: status {answer.status_code}; try again later")
        return answer.content

    def digest(self, sha256: str) -> tuple[str, int] | None:
        """What is under a digest, hashed as it comes."""
        return self._stream(sha256, None)

    def save(self, sha256: str, path: Path) -> bool:
        """Bring an artifact to a path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = self._stream(sha256, path)
        return answer is not None and answer[0] == sha256

    def _stream(self, sha256: str, path: Path | None) -> tuple[str, int] | None:
        import httpx  # noqa: PLC0415

        state, size = hashlib.sha256(), 0
        try:
            with self._client.stream("GET", f"{self.address}/v1/files/{sha256}") as answer:
                if answer.status_code != 200:
                    return None
                with (path or Path("/dev/null")).open("wb") as file:
                    for chunk in answer.iter_bytes(CHUNK):
                        state.update(chunk)
                        size += len(chunk)
                        file.write(chunk)
        except httpx.HTTPError:
            return None
        return state.hexdigest(), size


class LogSource:
    """A log alone, by whatever brings its files: nobody asks it for artifacts."""

    def __init__(self, address: str, log: Callable[[str], bytes | None]) -> None:
        self.address, self._log = address, log

    def log(self, name: str) -> bytes | None:
        """A file of the log."""
        return self._log(name)

    def digest(self, sha256: str) -> tuple[str, int] | None:
        """Nothing."""
        return None

    def save(self, sha256: str, path: Path) -> bool:
        """Nothing."""
        return False


def read_json(source: Source, sha256: str) -> Any:
    """A small JSON artifact; CorruptError where it is not there or not what it is called."""
    with tempfile.TemporaryDirectory(prefix="atoll-read-") as folder:
        path = Path(folder) / "file"
        if not source.save(sha256, path) or path.stat().st_size > LARGEST:
            raise CorruptError(f"{sha256:.12}, which an entry names, cannot be had")
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise CorruptError(f"{sha256:.12}, which an entry names, is not JSON") from None


def open_source(address: str) -> Source:
    """The source at an address: http(s)://…, s3://…, or a folder with `log/` in it."""
    if address.startswith(("http://", "https://")):
        return HttpSource(address)
    if "://" in address:
        return StoreSource(open_store(address))
    folder = Path(address).expanduser().resolve()
    if not (folder / "log").is_dir():
        raise ConfigError(f"{address} has no log in it; give the folder of the artifacts, or a URL")
    return StoreSource(open_store(str(folder)))
