"""Files by what is in them, `sha256/<hex>` in a store: sent in pieces that may break off, within quotas.

Pieces are collected on the coordinator's disk, hashed as a whole, and only then put into the store: what is
there under a digest has that digest. Names come from digests alone, so that nobody else names a file here.
"""

import contextlib
import errno
import hashlib
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from atoll.errors import AtollError, is_full
from atoll.net.crash import crash_point
from atoll.net.database import Database
from atoll.net.tables import BlobRow, Quota
from atoll.runs import file_digest
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import Store

PIECE = 8 << 20
"""Bytes of one piece at most: it is held in memory, since its signature covers all of it."""
LARGEST = 64 << 30
"""Bytes of a file at most."""
HOURLY = 256 << 30
"""Bytes that one account may send in an hour."""
SPARE = 64 << 20
"""Bytes of disk that are never used up."""
SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactError(AtollError):
    """A piece or a file is not taken; the code says why, and the status what HTTP calls it."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


class Artifacts:
    """The run's files, in a store that others may see, with a folder of our own for what is on its way."""

    def __init__(
        self,
        store: Store,
        scratch: Path,
        database: Database,
        *,
        clock: Clock = CLOCK,
        hourly: int = HOURLY,
        largest: int = LARGEST,
    ) -> None:
        self.store, self.scratch, self.database, self.clock = store, scratch, database, clock
        self.hourly, self.largest = hourly, largest
        self._busy: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        for folder in (self._coming, self._kept):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def _coming(self) -> Path:
        return self.scratch / "coming"

    @property
    def _kept(self) -> Path:
        return self.scratch / "kept"

    def size(self, sha256: str) -> int | None:
        """How long a file is that is here, whole; None where it is not."""
        with self.database.reading() as session:
            return session.scalar(select(BlobRow.size).where(BlobRow.sha256 == _checked(sha256)))

    def received(self, sha256: str, account: str) -> int:
        """From which byte on an account should go on with a file.

        The last byte is asked for once more: we may have been killed when all was here, but not in its place.
        """
        path = self._part(_checked(sha256), account)
        return max(0, path.stat().st_size - 1) if path.exists() else 0

    def receive(self, sha256: str, account: str, start: int, total: int, piece: bytes) -> bool:
        """Take one piece; whether the file is now whole. A piece that is there already is no fault."""
        _checked(sha256)
        if total > self.largest or len(piece) > PIECE or not 0 <= start <= start + len(piece) <= total:
            raise ArtifactError(413, "size", f"pieces have at most {PIECE} bytes, files {self.largest}")
        known = self.size(sha256)
        if known is not None:
            if known != total:
                raise ArtifactError(409, "size", f"the file of this digest has {known} bytes, not {total}")
            return True
        with self._alone(f"{account} {sha256}"):
            part = self._part(sha256, account)
            there = part.stat().st_size if part.exists() else 0
            if start > there:
                raise ArtifactError(409, "gap", f"{there} bytes are here; go on from there")
            fresh = piece[there - start :]
            if fresh:
                self._count(account, len(fresh))
                self._append(part, there, fresh)
                crash_point("artifacts.piece")
            if max(there, start + len(piece)) < total:
                return False
            part.touch()  # a file may be empty
            self._finish(part, sha256, total, account)
            return True

    def _append(self, part: Path, there: int, fresh: bytes) -> None:
        try:
            if shutil.disk_usage(self.scratch).free < SPARE + len(fresh):
                raise OSError(errno.ENOSPC, "no space left")
            with part.open("ab") as file:
                file.write(fresh)
        except OSError as error:
            with contextlib.suppress(OSError), part.open("ab") as file:
                file.truncate(there)
            if is_full(error):
                raise ArtifactError(507, "full", "the coordinator's disk is full; come back later") from None
            raise

    def _finish(self, part: Path, sha256: str, total: int, account: str) -> None:
        if part.stat().st_size != total or file_digest(part) != sha256:
            part.unlink()
            raise ArtifactError(422, "digest", "what came has another digest; it was dropped, send it again")
        self.add(part, sha256, account)
        part.unlink(missing_ok=True)

    def add(self, path: Path, sha256: str, account: str = "") -> None:
        """Put a file into the store whose digest is known to be this one."""
        size = path.stat().st_size
        crash_point("artifacts.before-store")
        self.store.upload(path, name_of(sha256))
        crash_point("artifacts.after-store")
        with self.database.writing() as session:
            if session.get(BlobRow, sha256) is None:
                session.add(BlobRow(sha256=sha256, size=size, account=account, created=self.clock.date()))
        crash_point("artifacts.after-commit")

    def write(self, data: bytes) -> str:
        """Put bytes of our own into the store; their digest."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._coming / f"own-{sha256}-{threading.get_ident()}"
        path.write_bytes(data)
        self.add(path, sha256)
        path.unlink()
        return sha256

    def path(self, sha256: str) -> Path:
        """A file on this machine: the store's own where it is a folder, else a copy that is kept."""
        if self.size(sha256) is None:
            raise ArtifactError(404, "missing", "there is no such file here")
        if "://" not in self.store.address:
            return Path(self.store.address) / name_of(sha256)
        kept = self._kept / sha256
        if not kept.exists():
            with self._alone(f"kept {sha256}"):
                self.store.download(name_of(sha256), kept, sha256)
        return kept

    def read(self, sha256: str, most: int = 16 << 20) -> bytes:
        """A small file."""
        path = self.path(sha256)
        if path.stat().st_size > most:
            raise ArtifactError(413, "size", f"the file has more than {most} bytes")
        return path.read_bytes()

    def pieces(self, path: Path, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of a range, a megabyte at a time."""
        with path.open("rb") as file:
            file.seek(start)
            while start < stop and (data := file.read(min(1 << 20, stop - start))):
                start += len(data)
                yield data

    def lay_out(self, files: dict[str, str], folder: Path) -> None:
        """Copy files by path and digest into a folder; what is there and right already stays."""
        for name, sha256 in files.items():
            target = folder / name
            if target.is_file() and file_digest(target) == sha256:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            self.store.download(name_of(sha256), target, sha256)
            crash_point("artifacts.laid-out")

    def sweep(self, now: float, age: float = 7 * 86400.0) -> int:
        """Drop what broke off long ago; how many."""
        old = [path for path in self._coming.iterdir() if path.stat().st_mtime < now - age]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _count(self, account: str, size: int) -> None:
        hour = int(self.clock.date() // 3600)
        with self.database.writing(durable=False) as session:
            row = session.get(Quota, (account, hour))
            if row is None:
                row = Quota(account=account, hour=hour, bytes=0)
                session.add(row)
            if row.bytes + size > self.hourly:
                raise ArtifactError(429, "quota", f"{self.hourly} bytes an hour; come back in the next one")
            row.bytes += size

    def _part(self, sha256: str, account: str) -> Path:
        return self._coming / f"{sha256}-{_checked(account)[:16]}"

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One at a time for each name, of the threads of this process."""
        with self._guard:
            if len(self._busy) > 10_000:
                self._busy = {key: lock for key, lock in self._busy.items() if lock.locked()}
            lock = self._busy.setdefault(name, threading.Lock())
        with lock:
            yield


def name_of(sha256: str) -> str:
    """Where a file of this digest is in the store."""
    return f"sha256/{_checked(sha256)}"


def _checked(digest: str) -> str:
    if not SHA256.fullmatch(digest):
        raise ArtifactError(404, "name", "a file is named by its sha256, 64 hexadecimal digits")
    return digest
