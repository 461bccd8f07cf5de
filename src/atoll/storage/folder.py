"""A store that is a folder on a file system that all machines see."""

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import StorageError
from atoll.runs import safe_name
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.download import Download
from atoll.storage.patience import Fault, Patience
from atoll.storage.store import PATIENCE, Event, check_address, unheard

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
Answer = TypeVar("Answer")


class FolderStore:
    """Files below a folder. Names that begin with a dot are files on their way, and nobody's business."""

    def __init__(
        self, address: str, patience: float = PATIENCE, event: Event = unheard, clock: Clock = CLOCK
    ) -> None:
        self.address, self.event = check_address(address), event
        self._top = _made(Path(self.address))
        self._patience = Patience(self.address, patience, event, clock)

    def check(self) -> None:
        """Say at once what is wrong with the folder."""
        self._ask("list", "", lambda: os.listdir(self._top))

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._ask("head", name, self._path(name).is_file)

    def read(self, name: str) -> bytes | None:
        """A small file, or None where there is none."""
        return self._ask("get", name, lambda: _bytes(self._path(name)))

    def read_from(self, name: str, start: int) -> bytes | None:
        """What a small file has from this byte on; None where there is none."""
        return self._ask("get", name, lambda: _bytes(self._path(name), start))

    def read_json(self, name: str) -> Any:
        """A small JSON file, or None where there is none; half of one is looked at again."""
        return self._ask("get", name, lambda: _parsed(_bytes(self._path(name))))

    def write(self, name: str, data: bytes) -> None:
        """A small file, in the place of an earlier one."""

        def put() -> None:
            with self._beside(name) as beside:
                _write(beside, data)
                beside.replace(self._path(name))

        self._ask("put", name, put)

    def create(self, name: str, data: bytes) -> bool:
        """A small file that must not be there yet; False if another one is."""

        def put() -> bool:
            with self._beside(name) as beside:
                _write(beside, data)
                return _put_in_place_once(beside, self._path(name), data)

        # A file system of a network may have done what it says it has not: then it is our own that is there.
        return self._ask("create", name, put) or self.read(name) == data

    def names(self, under: str = "") -> list[str]:
        """Every file below a folder, in order."""
        return self._ask("list", under, lambda: sorted(self._walk(self._path(under) if under else self._top)))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that is not there is no problem."""
        for name in names:
            path = self._path(name)
            self._ask("delete", name, lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]

    def upload(self, path: Path, name: str) -> None:
        """A file of any size; one of this name and size is not copied again."""

        def put() -> None:
            target = self._path(name)
            if target.is_file() and target.stat().st_size == path.stat().st_size:
                return
            with self._beside(name) as beside:
                shutil.copyfile(path, beside)
                with beside.open("rb") as file:
                    os.fsync(file.fileno())
                beside.replace(target)

        if not path.is_file():
            raise FileNotFoundError(path)
        self._ask("put", name, put)

    def download(self, name: str, path: Path, sha256: str) -> None:
        """A file of any size, from where an earlier call stopped; checked, then put in place."""
        source = self._path(name)
        Download(
            f"{self.address}/{name}",
            lambda: self._ask("head", name, lambda: source.stat().st_size),
            lambda start, end: self._ask("get", name, lambda: _piece(source, start, end)),
            self.event,
        ).to(path, sha256)

    def _path(self, name: str) -> Path:
        return self._top / safe_name(name)

    @contextlib.contextmanager
    def _beside(self, name: str) -> Iterator[Path]:
        """A file to write to before it gets its name; other machines may have processes with our number."""
        target = self._path(name)
        if not self._top.is_dir():  # not made anew: it would be on this machine's disk
            raise Fault("the folder is not there any more")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
        try:
            yield beside
        finally:
            beside.unlink(missing_ok=True)

    def _walk(self, folder: Path) -> Iterator[str]:
        for parent, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = Path(parent).relative_to(self._top)
            yield from ((inside / name).as_posix() for name in files if not name.startswith("."))

    def _ask(self, operation: str, name: str, request: Callable[[], Answer]) -> Answer:
        def asked() -> Answer:
            try:
                return request()
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno in READ_ONLY:
                    writing = operation in ("put", "create", "delete")
                    raise StorageError(_refusal(self.address, writing)) from None
                raise Fault(os.strerror(error.errno or errno.EIO)) from None

        return self._patience(operation, name, asked)


def _made(path: Path) -> Path:
    """A run's folder in a folder that must be there: a mount that is missing is not made on this disk."""
    if not path.parent.is_dir():
        raise StorageError(f"{path.parent}: there is no such folder; mount it or correct launch.store")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno in READ_ONLY:
            raise StorageError(_refusal(str(path.parent), writing=True)) from None
        raise
    return path


def _refusal(address: str, writing: bool) -> str:
    if writing:
        return f"{address}: writing is not allowed; get a folder that you may write to"
    return f"{address}: reading is not allowed; get a folder that you may read"


def _bytes(path: Path, start: int = 0) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parsed(raw: bytes | None) -> Any:
    try:
        return None if raw is None else json.loads(raw)
    except ValueError:
        raise Fault(f"only {len(raw or b'')} bytes came") from None


def _piece(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    if len(raw) != end - start:
        raise Fault(f"{len(raw)} bytes came of {end - start}")
    return raw


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place_once(beside: Path, target: Path, data: bytes) -> bool:
    """Give a file a name that nothing has yet; True if it was free."""
    try:
        os.link(beside, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _created(target, data)
    return True


def _created(target: Path, data: bytes) -> bool:
    """The same on a file system without links; a reader may see half of it for a moment."""
    try:
        number = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return True
