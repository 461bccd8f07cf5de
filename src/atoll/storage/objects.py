"""Files in an object store: pulled with their hashes checked, pushed whole, created at most once."""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import ConfigError, CorruptError, Interrupted, StorageError
from atoll.runs import file_digest

logger = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "az")
Tell = Callable[..., None]
"""Is told of every fault: a kind of event, and facts."""
Answer = TypeVar("Answer")

FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds before the second try and between later ones; each wait is twice the last, give or take a half."""
CHUNK = 8 * 2**20
"""Bytes that are pulled by one request, and the size up to which one request pushes a whole file."""
MOST_PARTS = 9000
"""Of a multipart upload; S3 allows 10,000."""
HASH_TRIES = 5
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where cloud machines tell their roles."""
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL")
"""Environment variables with the address of a server of one's own."""
KINDS = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Request": "the connection broke",
    "Interrupted": "the connection broke",
    "Decode": "the answer broke off",
}
"""What the library calls a failed request, and what we do."""


class Truncated(Exception):  # noqa: N818 - never leaves this module
    """Fewer bytes came than there are, or not what they should be."""


class Store:
    """A bucket, or a folder of one, or a mounted folder.

    Every request is tried again with growing waits until `patience` runs out, and every failed try is told.
    The library's own words stay inside: they can contain keys and signed requests.
    """

    def __init__(
        self, address: str, patience: float = 300.0, tell: Tell = lambda kind, **facts: None
    ) -> None:
        self.address = check_address(address)
        self.patience, self.tell = patience, tell
        self._answered = False
        self._obstore = _library()
        self._once = _connect(self.address, retries=0)
        self._multipart = None if "://" not in self.address else _connect(self.address, retries=10)
        """Parts of an upload are tried again by the library: one that fails is no reason to start over."""

    def check(self) -> None:
        """Say at once what is wrong with address or access."""
        self._patiently("list", "", lambda: next(iter(self._obstore.list(self._once, chunk_size=1)), None))

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self._size(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """A small file, or None where there is none; as much of it as there was when we asked."""
        try:
            size = self._size(name)
            if not size:  # there is no range of nothing
                return b""
            return self._patiently("get", name, lambda: self._range(name, 0, size))
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> Any:
        """A small JSON file, or None where there is none; a truncated one is asked for again."""

        def parse() -> Any:
            raw = bytes(self._obstore.get(self._once, name).bytes())
            try:
                return json.loads(raw)
            except ValueError:
                raise Truncated(f"only {len(raw)} bytes came") from None

        try:
            return self._patiently("get", name, parse)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """A small file, in the place of an earlier one."""
        self._patiently("put", name, lambda: self._obstore.put(self._once, name, data, use_multipart=False))

    def create(self, name: str, data: bytes) -> bool:
        """A small file that must not be there yet; False if another one is."""

        def put() -> None:
            self._obstore.put(self._once, name, data, mode="create", use_multipart=False)

        try:
            self._patiently("create", name, put)
        except self._obstore.exceptions.AlreadyExistsError:
            # An answer may be lost after the deed is done: then it is our own that is there.
            return self.read(name) == data
        return True

    def names(self, under: str = "") -> dict[str, tuple[float, int]]:
        """Every file below a folder, with the time of its last change and its size."""
        prefix = f"{under}/" if under else None

        def collect() -> dict[str, tuple[float, int]]:
            return {
                entry["path"]: (entry["last_modified"].timestamp(), entry["size"])
                for page in self._obstore.list(self._once, prefix)
                for entry in page
            }

        return self._patiently("list", under, collect)

    def delete(self, names: list[str]) -> None:
        """Remove files; one that is not there is no problem."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._patiently("delete", name, functools.partial(self._obstore.delete, self._once, name))

    def push(self, path: Path, name: str) -> None:
        """A file of any size; it appears whole or not at all, and what is there already is not sent again."""
        size = path.stat().st_size
        with contextlib.suppress(FileNotFoundError):
            if self._size(name) == size:
                return
        if size <= CHUNK or self._multipart is None:
            self._patiently(
                "put", name, lambda: self._obstore.put(self._once, name, path, use_multipart=False)
            )
            return
        part = max(CHUNK, -(-size // MOST_PARTS))
        self._patiently(
            "put",
            name,
            lambda: self._obstore.put(
                self._multipart, name, path, use_multipart=True, chunk_size=part, max_concurrency=4
            ),
        )

    def pull(self, name: str, path: Path, sha256: str) -> None:
        """A file of any size, chunk by chunk from where an earlier call stopped; checked, then put in place.

        `sha256` may be the beginning of one.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{sha256[:12]}.partial")
        with partial.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another job of this machine may want the same
            if not _is(path, sha256):
                self._fetch(name, file, partial, sha256)
                os.fsync(file.fileno())
                partial.replace(path)
        partial.unlink(missing_ok=True)

    def _fetch(self, name: str, file: Any, partial: Path, sha256: str) -> None:
        for _ in range(HASH_TRIES):
            size = self._size(name)
            if file.tell() > size:
                file.truncate(0)
            while (position := os.fstat(file.fileno()).st_size) < size:
                end = min(position + CHUNK, size)
                file.write(self._patiently("get", name, functools.partial(self._range, name, position, end)))
                file.flush()
            if _is(partial, sha256):
                return
            self.tell("store_fault", operation="get", name=name, problem="sha256 differs")
            file.truncate(0)
        raise CorruptError(
            f"{self.address}/{name} is damaged (sha256 differs); remove its stage there and run again"
        )

    def _size(self, name: str) -> int:
        return int(self._patiently("head", name, lambda: self._obstore.head(self._once, name))["size"])

    def _range(self, name: str, start: int, end: int) -> bytes:
        raw = bytes(self._obstore.get_range(self._once, name, start=start, end=end))
        if len(raw) != end - start:
            raise Truncated(f"{len(raw)} bytes came of {end - start}")
        return raw

    def _patiently(self, operation: str, name: str, action: Callable[[], Answer]) -> Answer:
        began, wait, tries = time.monotonic(), FIRST_WAIT, 0
        while True:
            tries += 1
            try:
                answer = action()
                self._answered = True
                return answer
            except (FileNotFoundError, self._obstore.exceptions.AlreadyExistsError) as error:
                if "NoSuchBucket" in str(error):
                    raise self._refusal(operation, error) from None
                raise
            except (self._obstore.exceptions.BaseError, OSError, Truncated) as error:
                # A role may be away for a moment; where none has ever been there is none.
                if _is_final(error) or (not self._answered and _asks_the_machine(str(error))):
                    raise self._refusal(operation, error) from None
                problem = _problem(error)
            self.tell("store_fault", operation=operation, name=name, problem=problem, tries=tries)
            if tries == 1:
                logger.warning("%s: %s (%s); trying again", self.address, problem, operation)
            if time.monotonic() + wait - began > self.patience:
                raise Interrupted(
                    f"{self.address} does not answer ({problem}); run the same command again when it does"
                )
            time.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, LONGEST_WAIT)

    def _refusal(self, operation: str, error: Exception) -> StorageError:
        """What is wrong, in our own words."""
        text = str(error)
        if _asks_the_machine(text):
            return StorageError(
                f"{self.address}: there is no key, neither in environment variables nor by the machine's role"
            )
        if _errno(text) in READ_ONLY:
            return StorageError(f"{self.address}: writing is not allowed; get a folder that you may write to")
        if "NoSuchBucket" in text or (operation == "list" and _status(text) == 404):
            return StorageError(f"{self.address}: there is no such bucket; create it or correct launch.store")
        if re.search(r"SignatureDoesNotMatch|InvalidAccessKeyId|InvalidToken|ExpiredToken", text):
            return StorageError(
                f"{self.address}: the store does not accept your key; check its environment variables"
            )
        if isinstance(
            error,
            self._obstore.exceptions.UnauthenticatedError | self._obstore.exceptions.PermissionDeniedError,
        ) or _status(text) in (401, 403):
            if operation in ("put", "create", "delete"):
                return StorageError(f"{self.address}: writing is not allowed; get a key that may write")
            return StorageError(
                f"{self.address}: access is not allowed; check the environment variables with your key"
            )
        return StorageError(f"{self.address}: the store refuses to {operation} ({_problem(error)})")


def check_address(address: str) -> str:
    """An address without credentials, of a kind that is known; a folder becomes absolute."""
    scheme, found, rest = address.partition("://")
    if not found or scheme == "file":
        folder = Path(rest if found else address).expanduser()
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
    found = re.match(rf"({'|'.join(SCHEMES)}):/+(.+)", str(path))
    return f"{found[1]}://{found[2]}" if found else None


def _library() -> Any:
    try:
        import obstore  # noqa: PLC0415 - of the extra store
        import obstore.exceptions  # noqa: PLC0415
    except ImportError:
        raise ConfigError("launch.store needs the library obstore; pip install 'atoll[store]'") from None
    return obstore


def _connect(address: str, retries: int) -> Any:
    from obstore import store  # noqa: PLC0415

    if "://" not in address:
        return store.LocalStore(prefix=_folder(Path(address)))
    patience: Any = {"max_retries": retries, "retry_timeout": timedelta(minutes=3)}
    # A server of one's own is often reached without encryption; whoever writes http:// means it.
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options: Any = {"timeout": "120s", "connect_timeout": "10s", "allow_http": plain}
    try:
        return store.from_url(address, retry_config=patience, client_options=options)
    except Exception as error:  # the library's words may hold a key
        raise ConfigError(f"launch.store '{address}' cannot be used ({type(error).__name__})") from None


def _folder(path: Path) -> Path:
    """A run's folder in a folder that must be there: a mount that is missing is not made on this disk."""
    if not path.parent.is_dir():
        raise StorageError(f"{path.parent}: there is no such folder; mount it or correct launch.store")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno in READ_ONLY:
            raise StorageError(
                f"{path.parent}: writing is not allowed; get a folder that you may write to"
            ) from None
        raise
    return path


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and file_digest(path).startswith(sha256)


def _status(text: str) -> int | None:
    found = re.search(r"status code: (\d{3})", text)
    return int(found[1]) if found else None


def _is_final(error: Exception) -> bool:
    """Whether trying again is no use: the store has understood, and says no."""
    status = _status(str(error))
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError"):
        return True
    if "builder error" in str(error):  # of the request, from an address that makes no sense
        return True
    if _errno(str(error)) in READ_ONLY:
        return True
    return status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429)


def _asks_the_machine(text: str) -> bool:
    """Whether a cloud machine was asked for its role, in vain: the last that is tried for a key."""
    return any(place in text for place in METADATA)


def _errno(text: str) -> int | None:
    found = re.search(r"os error (\d+)", text)
    return int(found[1]) if found else None


def _problem(error: Exception) -> str:
    """A few words for what happened, none of them the library's."""
    text = str(error)
    if isinstance(error, Truncated):
        return text
    if (status := _status(text)) is not None:
        return f"HTTP {status}"
    if (number := _errno(text)) is not None:
        return os.strerror(number)
    found = re.search(r"kind: (\w+)", text)
    return KINDS.get(found[1], found[1]) if found else type(error).__name__


def walk(folder: Path) -> Iterator[Path]:
    """Every whole file below a folder: not hidden, not in a hidden folder."""
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") for part in inside):
            yield path
