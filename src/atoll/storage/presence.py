"""That a run is driven from here: no right, only a sign of life; others that are there become events."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from atoll.errors import AtollError, Interrupted
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.leases import file_name, folder_name, heartbeats, lives, this_process, token_of
from atoll.storage.store import Store

DRIVER = "driver"


class Presence:
    """The sign of one driver, among those of others."""

    def __init__(self, store: Store, seconds: float, clock: Clock = CLOCK) -> None:
        self.store, self.seconds, self.clock = store, seconds, clock
        self.number = 0
        self.holder = this_process()
        self._others: dict[str, tuple[dict[str, Any], float]] = {}
        self._met: set[str] = set()

    def announce(self) -> None:
        """Leave the sign, and look for those of others who have not said that they are through."""
        self.number = max(map(token_of, self.store.names(folder_name(DRIVER))), default=0) + 1
        while not self.store.create(self._name, json.dumps(self.holder).encode()):
            self.number += 1
        # Looked for only now: of two that begin at the same moment, the later one sees the earlier.
        for name in self.store.names(folder_name(DRIVER)):
            holder = self.store.read_json(name) or {}
            if name < self._name and not holder.get("released"):
                self._others[name] = holder, self.clock.now()
        self.look()

    @property
    def _name(self) -> str:
        return file_name(DRIVER, self.number)

    def heartbeat(self) -> bool:
        """Say that we live, and see who else does."""
        self.holder["heartbeat"] += 1
        self._write(self._name, self.holder)
        self.look()
        return True

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the sign until the end of the block, then take it away."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            stack.enter_context(heartbeats(self.heartbeat, self.seconds, self.clock))
            yield

    def _release(self) -> None:
        with contextlib.suppress(AtollError, Interrupted):  # then silence says it
            self._write(self._name, {**self.holder, "released": True})

    def look(self) -> None:
        """Make an event, once, of each other driver that is at work as well, or that was lost."""
        for name, (before, since) in [*self._others.items()]:
            now = self.store.read_json(name) or {}
            alive = lives(now)
            silent = now == before and self.clock.now() - since >= self.seconds
            if now.get("released"):
                del self._others[name]
            elif alive is False or (alive is None and silent):
                self._event("lost", name, now)
                self._write(name, {**now, "released": True})
                del self._others[name]
            elif (alive or now != before) and name not in self._met:
                self._met.add(name)
                self._event("another", name, now)
            if name in self._others and now != before:
                self._others[name] = now, self.clock.now()

    def _event(self, kind: str, name: str, holder: dict[str, Any]) -> None:
        self.store.event(kind, what=DRIVER, host=holder.get("host"), token=token_of(name))

    def _write(self, name: str, holder: dict[str, Any]) -> None:
        self.store.write(name, json.dumps(holder).encode())
