"""A store in a bucket of Amazon's, Google's or Microsoft's kind, reached by the library obstore."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import ConfigError, StorageError
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.download import CHUNK, Download
from atoll.storage.patience import Fault, Patience
from atoll.storage.store import PATIENCE, Event, check_address, unheard

Answer = TypeVar("Answer")

MOST_PARTS = 9000
"""Of a multipart upload; S3 allows 10,000."""
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


class ObjectStore:
    """A bucket, or a folder of one.

    The library's own words stay inside: they can contain keys and signed requests.
    """

    def __init__(
        self, address: str, patience: float = PATIENCE, event: Event = unheard, clock: Clock = CLOCK
    ) -> None:
        self.address, self.event = check_address(address), event
        self._patience = Patience(self.address, patience, event, clock)
        self._answered = False
        self._obstore = _library()
        self._once = _connect(self.address, retries=0)
        self._multipart = _connect(self.address, retries=10)
        """Parts of an upload are tried again by the library: one that fails is no reason to start over."""

    def check(self) -> None:
        """Say at once what is wrong with address or access."""
        self._ask("list", "", lambda: next(iter(self._obstore.list(self._once, chunk_size=1)), None))

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        try:
            self._size(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """A small object, or None where there is none; as much of it as there was when we asked."""
        return self.read_from(name, 0)

    def read_from(self, name: str, start: int) -> bytes | None:
        """What a small object has from this byte on; None where there is none."""
        try:
            size = self._size(name)
            if size <= start:  # there is no range of nothing
                return b""
            return self._ask("get", name, lambda: self._range(name, start, size))
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> Any:
        """A small JSON object, or None where there is none; a truncated one is asked for again."""

        def parse() -> Any:
            raw = bytes(self._obstore.get(self._once, name).bytes())
            try:
                return json.loads(raw)
            except ValueError:
                raise Fault(f"only {len(raw)} bytes came") from None

        try:
            return self._ask("get", name, parse)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """A small object, in the place of an earlier one."""
        self._ask("put", name, lambda: self._obstore.put(self._once, name, data, use_multipart=False))

    def create(self, name: str, data: bytes) -> bool:
        """A small object that must not be there yet; False if another one is."""

        def put() -> None:
            self._obstore.put(self._once, name, data, mode="create", use_multipart=False)

        try:
            self._ask("create", name, put)
        except self._obstore.exceptions.AlreadyExistsError:
            # An answer may be lost after the deed is done: then it is our own that is there.
            return self.read(name) == data
        return True

    def names(self, under: str = "") -> list[str]:
        """Every object below a folder, in order."""
        prefix = f"{under}/" if under else None

        def collect() -> list[str]:
            pages = self._obstore.list(self._once, prefix)
            return sorted(entry["path"] for page in pages for entry in page)

        return self._ask("list", under, collect)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; one that is not there is no problem."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._ask("delete", name, functools.partial(self._obstore.delete, self._once, name))

    def upload(self, path: Path, name: str) -> None:
        """A file of any size; it appears whole or not at all, and what is there already is not sent again."""
        size = path.stat().st_size
        with contextlib.suppress(FileNotFoundError):
            if self._size(name) == size:
                return
        if size <= CHUNK:
            self._ask("put", name, lambda: self._obstore.put(self._once, name, path, use_multipart=False))
            return
        options: Any = {"use_multipart": True, "chunk_size": max(CHUNK, -(-size // MOST_PARTS))}
        self._ask(
            "put",
            name,
            lambda: self._obstore.put(self._multipart, name, path, max_concurrency=4, **options),
        )

    def download(self, name: str, path: Path, sha256: str) -> None:
        """A file of any size, from where an earlier call stopped; checked, then put in place."""
        Download(
            f"{self.address}/{name}",
            lambda: self._size(name),
            lambda start, end: self._ask("get", name, lambda: self._range(name, start, end)),
            self.event,
        ).to(path, sha256)

    def _size(self, name: str) -> int:
        return int(self._ask("head", name, lambda: self._obstore.head(self._once, name))["size"])

    def _range(self, name: str, start: int, end: int) -> bytes:
        raw = bytes(self._obstore.get_range(self._once, name, start=start, end=end))
        if len(raw) != end - start:
            raise Fault(f"{len(raw)} bytes came of {end - start}")
        return raw

    def _ask(self, operation: str, name: str, request: Callable[[], Answer]) -> Answer:
        """Make a request until it is answered; what the library raises becomes our own."""

        def asked() -> Answer:
            try:
                answer = request()
            except (FileNotFoundError, self._obstore.exceptions.AlreadyExistsError) as error:
                if "NoSuchBucket" in str(error):
                    raise self._refusal(operation, error) from None
                raise
            except (self._obstore.exceptions.BaseError, OSError) as error:
                # A role may be away for a moment; where none has ever been there is none.
                if _is_final(error) or (not self._answered and _asks_the_machine(str(error))):
                    raise self._refusal(operation, error) from None
                raise Fault(_problem(error)) from None
            self._answered = True
            return answer

        return self._patience(operation, name, asked)

    def _refusal(self, operation: str, error: Exception) -> StorageError:
        """What is wrong, in our own words."""
        text = str(error)
        if _asks_the_machine(text):
            return StorageError(
                f"{self.address}: there is no key, neither in environment variables nor by the machine's role"
            )
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


def _library() -> Any:
    try:
        import obstore  # noqa: PLC0415 - of the extra store
        import obstore.exceptions  # noqa: PLC0415
    except ImportError:
        raise ConfigError("launch.store needs the library obstore; pip install 'atoll[store]'") from None
    return obstore


def _connect(address: str, retries: int) -> Any:
    from obstore import store  # noqa: PLC0415

    patience: Any = {"max_retries": retries, "retry_timeout": timedelta(minutes=3)}
    # A server of one's own is often reached without encryption; whoever writes http:// means it.
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options: Any = {"timeout": "120s", "connect_timeout": "10s", "allow_http": plain}
    try:
        return store.from_url(address, retry_config=patience, client_options=options)
    except Exception as error:  # the library's words may hold a key
        raise ConfigError(f"launch.store '{address}' cannot be used ({type(error).__name__})") from None


def _status(text: str) -> int | None:
    match = re.search(r"status code: (\d{3})", text)
    return int(match[1]) if match else None


def _is_final(error: Exception) -> bool:
    """Whether trying again is no use: the store has understood, and says no."""
    status = _status(str(error))
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError"):
        return True
    if "builder error" in str(error):  # of the request, from an address that makes no sense
        return True
    return status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429)


def _asks_the_machine(text: str) -> bool:
    """Whether a cloud machine was asked for its role, in vain: the last that is tried for a key."""
    return any(place in text for place in METADATA)


def _errno(text: str) -> int | None:
    match = re.search(r"os error (\d+)", text)
    return int(match[1]) if match else None


def _problem(error: Exception) -> str:
    """A few words for what happened, none of them the library's."""
    text = str(error)
    if (status := _status(text)) is not None:
        return f"HTTP {status}"
    if (number := _errno(text)) is not None:
        return os.strerror(number)
    match = re.search(r"kind: (\w+)", text)
    return KINDS.get(match[1], match[1]) if match else type(error).__name__
