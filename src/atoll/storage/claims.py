"""Who works on what: a claim is renewed while its holder lives, and one that falls silent can be taken over.

Claims are numbered files that are only ever created, which every store can do conditionally.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atoll.errors import AtollError, Interrupted
from atoll.storage.objects import Store

logger = logging.getLogger(__name__)

BEATS = 4
"""How often a claim is renewed in the time after which its silence counts."""
LONGEST_LOOK = 5.0
"""Seconds between two looks at a claim of somebody else."""


class Claim:
    """The right to work on one thing, as long as nobody has a later claim."""

    def __init__(self, store: Store, what: str, lease: float) -> None:
        self.store, self.what, self.lease = store, what, lease
        self.folder = f"claims/{what.replace('/', '-')}"
        self.number = 0
        self.lost = threading.Event()
        self._said: dict[str, Any] = {**_here(), "id": uuid.uuid4().hex, "beat": 0}

    def take(self, is_done: Callable[[], bool], stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it is ours; False if others have finished the work meanwhile, or we are to stop."""
        seen: tuple[int, Any] | None = None
        since = time.monotonic()
        while not is_done() and not stop():
            number, holder = self._newest()
            if (number, holder) != seen:
                if seen is None and not _is_free(holder):
                    logger.info("%s is worked on by %s; waiting for it", self.what, holder.get("host"))
                    self.store.tell("waiting", what=self.what, host=holder.get("host"), claim=number)
                seen, since = (number, holder), time.monotonic()
            free = _is_free(holder)
            if free or time.monotonic() - since >= self.lease:
                if self._create(number + 1):
                    if not free or (holder and not holder.get("released")):
                        self.store.tell("lost", what=self.what, host=holder.get("host"), claim=number)
                    self.store.tell("claimed", what=self.what, host=self._said["host"], claim=self.number)
                    return True
                continue
            time.sleep(min(self.lease / BEATS, LONGEST_LOOK))
        return False

    def _newest(self) -> tuple[int, dict[str, Any]]:
        """The number of the last claim and what its holder said last; (0, {}) where there is none."""
        names = self.store.names(self.folder)
        if not names:
            return 0, {}
        last = max(names)
        return int(Path(last).stem), self.store.read_json(last) or {}

    def _create(self, number: int) -> bool:
        self.number = number
        return self.store.create(self._name, json.dumps(self._said).encode())

    @property
    def _name(self) -> str:
        return f"{self.folder}/{self.number:08d}.json"

    def beat(self) -> bool:
        """Say that we live; False if somebody has taken over."""
        if int(Path(max(self.store.names(self.folder))).stem) > self.number:
            self.lost.set()
            return False
        self._said["beat"] += 1
        self.store.write(self._name, json.dumps(self._said).encode())
        return True

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the claim until the end of the block, then give it back."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.lease / BEATS):
                # A store that is away or says no has been told of; it may come back before others take over.
                with contextlib.suppress(AtollError, Interrupted):
                    if not self.beat():
                        self.store.tell("claim_lost", what=self.what, claim=self.number)
                        return

        thread = threading.Thread(target=renew, name="atoll-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if not self.lost.is_set():
                with contextlib.suppress(AtollError, Interrupted):  # then silence gives it back
                    self.store.write(self._name, json.dumps({**self._said, "released": True}).encode())


class Presence(Claim):
    """That a run is driven from here: no right, only a sign of life; others that are found are told of."""

    def __init__(self, store: Store, lease: float) -> None:
        super().__init__(store, "driver", lease)
        self._others: dict[str, tuple[dict[str, Any], float]] = {}
        self._met: set[str] = set()

    def announce(self) -> None:
        """Leave the sign, and look for those of others who have not said that they are through."""
        number = max((int(Path(name).stem) for name in self.store.names(self.folder)), default=0) + 1
        while not self._create(number):
            number += 1
        # Looked for only now: of two that begin at the same moment, the later one sees the earlier.
        for name in sorted(self.store.names(self.folder)):
            holder = self.store.read_json(name) or {}
            if name < self._name and not holder.get("released"):
                self._others[name] = holder, time.monotonic()
        self.look()

    def beat(self) -> bool:
        """Say that we live, and see who else does."""
        self._said["beat"] += 1
        self.store.write(self._name, json.dumps(self._said).encode())
        self.look()
        return True

    def look(self) -> None:
        """Tell of each other driver once that it is at work as well, or that it was lost."""
        for name, (before, since) in [*self._others.items()]:
            now = self.store.read_json(name) or {}
            lives = _lives(now)
            silent = now == before and time.monotonic() - since >= self.lease
            if now.get("released"):
                del self._others[name]
            elif lives is False or (lives is None and silent):
                self.store.tell("lost", what=self.what, host=now.get("host"), claim=int(Path(name).stem))
                self.store.write(name, json.dumps({**now, "released": True}).encode())
                del self._others[name]
            elif (lives or now != before) and name not in self._met:
                self._met.add(name)
                self.store.tell("another", what=self.what, host=now.get("host"), claim=int(Path(name).stem))
            if name in self._others and now != before:
                self._others[name] = now, time.monotonic()


def _here() -> dict[str, Any]:
    """This process, as others can know it."""
    return {"host": socket.gethostname(), "space": _space(), "pid": os.getpid()}


def _space() -> str:
    """Where process ids have this meaning: a machine, or a container of it, since its last start."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def _is_free(holder: dict[str, Any]) -> bool:
    """Whether nobody holds the claim: there is none, it was given back, or its process is gone from here."""
    return not holder or bool(holder.get("released")) or _lives(holder) is False


def _lives(holder: dict[str, Any]) -> bool | None:
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
