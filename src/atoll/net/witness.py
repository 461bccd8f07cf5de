"""Who remembers what a log was: a worker that demands that it only grows, a witness that signs that it did.

Two logs for two audiences is the one lie that no signature shows; it is caught by comparing what people saw.
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import CorruptError
from atoll.net import history, notes, tiles
from atoll.net.notes import Checkpoint
from atoll.net.sources import Source
from atoll.runs.files import replacing


class Memory:
    """The last checkpoint of a log that somebody saw, in a file."""

    def __init__(self, path: Path, log_key: str) -> None:
        self._path, self.log_key = path, log_key

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What is remembered; None before anything is."""
        return notes.opened(self._path.read_bytes(), self.log_key) if self._path.is_file() else None

    def check(self, source: Source) -> Checkpoint:
        """Look at the log; it must go on from what is remembered, and that is then remembered.

        Raises `CorruptError` with what was broken; the evidence, two signed checkpoints, stays in the file
        and beside it.
        """
        note = source.log(tiles.CHECKPOINT)
        if note is None:
            raise CorruptError(f"{source.address} has no checkpoint of its log any more; ask for it")
        now, before = notes.opened(note, self.log_key), self.checkpoint
        problem = None if before is None else history.consistent(source, before, now)
        if problem is not None:
            self._path.with_suffix(".contradiction").write_bytes(note)
            raise CorruptError(
                f"{source.address} contradicts what it said before: {problem}; trust it no more"
            )
        if before is None or now.size > before.size:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as beside:
                beside.write_bytes(note)
        return now


def cosign(source: Source, memory: Memory, name: str, key: Ed25519PrivateKey, at: int) -> bytes:
    """The checkpoint of a log with a witness's signature, if the log only grew since it was last seen."""
    memory.check(source)
    note = source.log(tiles.CHECKPOINT)
    if note is None or notes.opened(note, memory.log_key) != memory.checkpoint:
        raise CorruptError(f"{source.address} changed while it was looked at; look again")
    return notes.cosigned(note, name, key, at)
