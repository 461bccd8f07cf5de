"""Who works on what: a lease is renewed by heartbeats, and one that falls silent goes to another.

Its token grows with every lease of the same name. Whatever a holder leaves behind is marked with its token,
so that one who was taken for dead and wakes up again can do no harm.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import AtollError, Interrupted
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import Store

logger = logging.getLogger(__name__)

HEARTBEATS = 4
"""How often a lease is renewed in the time after which silence ends it."""
LONGEST_LOOK = 5.0
"""Seconds between two looks at a lease of somebody else."""


class LeaseLost(Interrupted):
    """Another machine has taken over; nothing more is uploaded from here."""


class Lease(Protocol):
    """The right to work on one thing, as long as nobody has a later lease."""

    name: str
    token: int
    """The fencing token: larger than that of every earlier lease of this name."""

    @property
    def lost(self) -> bool:
        """Whether a later lease is known of."""

    def heartbeat(self) -> bool:
        """Say that we live; False if somebody has taken over."""

    def release(self) -> None:
        """Give it back, so that nobody waits; one that was lost is left to its heir."""


class Leases(Protocol):
    """Leases by name."""

    def acquire(self, name: str) -> Lease | None:
        """The lease, if nobody has it or its holder has been silent for too long; None otherwise."""

    def revoke(self, name: str) -> int:
        """Take a lease away from whoever has it, and give it to nobody; a token larger than all before."""


class StoreLeases:
    """Leases in a store: numbered files that are only ever created, which every store can do conditionally.

    How long a holder has been silent is measured here, from one look to the next: nobody's clock is compared.
    """

    def __init__(self, store: Store, seconds: float, clock: Clock = CLOCK) -> None:
        self.store, self.seconds, self.clock = store, seconds, clock
        self._seen: dict[str, tuple[int, Any, float]] = {}

    def acquire(self, name: str) -> "StoreLease | None":
        """The lease, if nobody has it or its holder has been silent since we first looked; else None."""
        token, holder = self._newest(name)
        free = is_free(holder)
        if not free and not self._is_silent(name, token, holder):
            return None
        lease = StoreLease(self.store, name, token + 1, this_process())
        if not self.store.create(file_name(name, lease.token), lease.encoded()):
            return None
        self._seen.pop(name, None)
        if holder and not holder.get("released"):
            self.store.event("lost", what=name, host=holder.get("host"), token=token)
        self.store.event("leased", what=name, host=lease.holder["host"], token=lease.token)
        return lease

    def revoke(self, name: str) -> int:
        """Take a lease away from whoever has it, and give it to nobody; a token larger than all before."""
        while True:
            token = self._newest(name)[0] + 1
            if self.store.create(file_name(name, token), _encoded({**this_process(), "released": True})):
                return token

    def _newest(self, name: str) -> tuple[int, dict[str, Any]]:
        """The token of the last lease and what its holder said last; (0, {}) where there is none."""
        names = self.store.names(folder_name(name))
        return (token_of(names[-1]), self.store.read_json(names[-1]) or {}) if names else (0, {})

    def _is_silent(self, name: str, token: int, holder: dict[str, Any]) -> bool:
        seen = self._seen.get(name)
        if seen is None or seen[:2] != (token, holder):
            if seen is None:
                logger.info("%s is worked on by %s; waiting for it", name, holder.get("host"))
                self.store.event("waiting", what=name, host=holder.get("host"), token=token)
            self._seen[name] = token, holder, self.clock.now()
            return False
        return self.clock.now() - seen[2] >= self.seconds


class StoreLease:
    """A lease in a store, and what its holder says there."""

    def __init__(self, store: Store, name: str, token: int, holder: dict[str, Any]) -> None:
        self.store, self.name, self.token, self.holder = store, name, token, holder
        self._lost = threading.Event()

    def encoded(self) -> bytes:
        """What others read of the holder."""
        return _encoded(self.holder)

    @property
    def lost(self) -> bool:
        """Whether a later lease was seen."""
        return self._lost.is_set()

    def heartbeat(self) -> bool:
        """Say that we live; False if somebody has taken over."""
        if self.lost:
            return False
        if self.store.exists(file_name(self.name, self.token + 1)):
            self._lost.set()
            self.store.event("lease_lost", what=self.name, token=self.token)
            return False
        self.holder["heartbeat"] += 1
        self.store.write(file_name(self.name, self.token), self.encoded())
        return True

    def release(self) -> None:
        """Give it back, unless it was lost."""
        if not self.lost:
            self.holder["released"] = True
            self.store.write(file_name(self.name, self.token), self.encoded())


def wait(
    leases: Leases,
    name: str,
    seconds: float,
    is_done: Callable[[], bool],
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = CLOCK,
) -> Lease | None:
    """The lease, as soon as it is ours; None if others have finished the work, or we are to stop."""
    while not is_done() and not stop():
        lease = leases.acquire(name)
        if lease is not None:
            return lease
        clock.sleep(min(seconds / HEARTBEATS, LONGEST_LOOK))
    return None


@contextlib.contextmanager
def kept(lease: Lease, seconds: float, clock: Clock = CLOCK) -> Iterator[Lease]:
    """Renew a lease until the end of the block, then give it back."""
    try:
        with heartbeats(lease.heartbeat, seconds, clock):
            yield lease
    finally:
        with contextlib.suppress(AtollError, Interrupted):  # then silence gives it back
            lease.release()


@contextlib.contextmanager
def heartbeats(beat: Callable[[], bool], seconds: float, clock: Clock = CLOCK) -> Iterator[None]:
    """Call again and again, from a thread of its own, until it says False or the block ends."""
    ended = threading.Event()

    def renew() -> None:
        while not clock.wait(ended, seconds / HEARTBEATS):
            # A store that is away or says no has made an event of it; it may come back in time.
            with contextlib.suppress(AtollError, Interrupted):
                if not beat():
                    return

    thread = threading.Thread(target=renew, name="atoll-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def folder_name(name: str) -> str:
    """Where the leases of a name are in a store."""
    return f"leases/{name.replace('/', '-')}"


def file_name(name: str, token: int) -> str:
    """Where one of them is."""
    return f"{folder_name(name)}/{token:08d}.json"


def token_of(file: str) -> int:
    """The token of the lease in this file."""
    return int(Path(file).stem)


def _encoded(holder: dict[str, Any]) -> bytes:
    return json.dumps(holder).encode()


def this_process() -> dict[str, Any]:
    """This process, as others can know it."""
    here = {"host": socket.gethostname(), "space": _space(), "pid": os.getpid()}
    return {**here, "id": uuid.uuid4().hex, "heartbeat": 0}


def _space() -> str:
    """Where process ids have this meaning: a machine, or a container of it, since its last start."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def is_free(holder: dict[str, Any]) -> bool:
    """Whether nobody holds the lease: there is none, it was given back, or its process is gone from here."""
    return not holder or bool(holder.get("released")) or lives(holder) is False


def lives(holder: dict[str, Any]) -> bool | None:
    """Whether the process of a holder is there; None if it is one of another machine."""
    if not holder.get("space") or holder["space"] != _space():
        return None
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
