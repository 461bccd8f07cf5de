"""From an address to a machine at work: key, manifest, what is downloaded, measurement, then the loop."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atoll.config import validate
from atoll.errors import ConfigError, CorruptError, RunError
from atoll.net import measuring
from atoll.net.client import Client, Refused, Throttle
from atoll.net.home import Home
from atoll.net.limits import Limits
from atoll.net.protocol import Manifest
from atoll.net.telling import Tell, counted
from atoll.net.turn import Machine, SealedJobs, Start
from atoll.net.witness import Memory
from atoll.net.worker import Worker
from atoll.runs import locks, write_json
from atoll.runs.parsing import unstamped
from atoll.storage.clock import CLOCK, Clock

MOVED, KNOWN = "moved.json", "known.json"
"""In a worker's folder, by the addresses of runs: where they have moved to, and their keys."""
SOON = 30.0
"""Days before a machine may no longer act for its account, from which on that is said."""


@dataclass
class Joining:
    """What a person says who lends a machine, and what the machine has."""

    url: str
    folder: Path
    tell: Tell
    limits: Limits = field(default_factory=Limits)
    stopping: Callable[[], bool] = lambda: False
    phrase: str = ""
    """The 24 words of an account that there is already."""
    nickname: str = ""
    seconds: float = measuring.SECONDS
    clock: Clock = CLOCK
    transport: httpx.BaseTransport | None = None
    start: Start = field(default_factory=SealedJobs)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def worker(self) -> Worker:
        """Introduce this machine to the coordinator, ready to work."""
        home = Home(self.folder)
        if self.phrase:  # before anybody asks for the key: another account has another
            home.delegation(self.clock.date(), self.phrase)
        moved = _read(self.folder / MOVED).get(self.url, [])
        client = Client(
            [*moved, self.url],
            home.key(),
            clock=self.clock,
            event=self._fault,
            throttle=Throttle(self.limits.mbit, self.clock),
            transport=self.transport,
            stopping=self.stopping,
        )
        client.up, client.down = home.rates()
        try:
            return self._introduced(client, home)
        except BaseException:
            client.close()
            raise

    def _introduced(self, client: Client, home: Home) -> Worker:
        self.tell.now(f"connecting: {self.url}")
        try:
            manifest, signed = client.manifest()
        except Refused as refusal:
            raise ConfigError(
                f"{self.url} is not the address of a run ({refusal}); give the one that `atoll host` printed"
            ) from None
        _same_coordinator(home.folder / KNOWN, self.url, signed.key)
        client.addresses += [one for one in manifest.addresses if one.rstrip("/") not in client.addresses]
        delegation, phrase = home.delegation(client.now())
        if phrase:  # at once: whatever happens next, nobody can show them again
            self.tell.news(
                "a new account was made; these 24 words are all that can restore it, and are not kept here:"
            )
            self.tell.news(phrase)
        joined = client.join(delegation, self.nickname)
        client.offset = joined.now - self.clock.date()
        self._introduce(manifest, joined.account)
        if (left := (delegation.expires - joined.now) / 86400) < SOON:
            self.tell.news(
                f"this machine may act for its account for {left:.0f} more days; --recover renews it"
            )
        if not measuring.is_known(home.folder, self.limits, self.clock.date()):
            self.tell.now(f"measuring: what this machine can do, for {self.seconds:.0f} seconds")
        capabilities = measuring.capabilities(home.folder, self.limits, self.clock.date(), self.seconds)
        self.tell.news(
            f"this machine: {capabilities.speed / 1e9:.0f} GFLOP/s, {_memory(capabilities.memory)}"
        )
        machine = Machine(client, home, self.tell, self.limits, self.stopping, self.clock, self.start)
        memory = Memory(home.folder / "logs" / f"{manifest.digest[:16]}.checkpoint", manifest.log)
        return Worker(machine, _settings(manifest), capabilities, memory=memory if manifest.log else None)

    def _introduce(self, manifest: Manifest, account: str) -> None:
        self.tell.news(f"run {manifest.name}, {len(manifest.graph)} stages; you are {account[:12]}")
        self.tell.news(
            f"downloads: {_downloads(manifest)}, {_room(self.limits)}; "
            f"licence of the data: {manifest.licence or 'not told by the host'}"
        )

    def _fault(self, kind: str, /, **facts: Any) -> None:
        self.faults.append({"event": kind, **facts})
        if kind == "moved":
            self.tell.news(f"the run has moved to {', '.join(facts['addresses'])}")
            write_json(self.folder / MOVED, {**_read(self.folder / MOVED), self.url: facts["addresses"]})


@contextlib.contextmanager
def at_work(joining: Joining) -> Iterator[Worker]:
    """A worker, and no other process that works for the same run in the same folder.

    Two would do the same unit in the same files, since each goes on with all that an earlier start has left.
    """
    worker = joining.worker()
    with contextlib.closing(worker.machine.client), contextlib.ExitStack() as held:
        place = joining.folder / f"run-{worker.machine.client.run[:16]}"
        try:
            held.enter_context(locks.alone(place, "worked for"))
        except RunError as error:
            raise RunError(f"{error}, or give this one a --home of its own") from None
        yield worker


def join(joining: Joining, *, once: bool = False) -> dict[str, Any]:
    """Work until there is nothing left, or somebody asks to stop; what came of it."""
    with at_work(joining) as worker:
        reason = worker.run(once)
    if reason == "finished":  # whoever has the address may publish another run there, with another key
        _forget(joining.folder / KNOWN, joining.url)
    states = [receipt.state for receipt in worker.receipts.values()]
    credited = sum(receipt.price for receipt in worker.receipts.values() if receipt.state == "accepted")
    return {
        "ended": reason,
        "submitted": len(states),
        "accepted": states.count("accepted"),
        "rejected": states.count("rejected"),
        "credits": credited / 1000,
        "faults": len(joining.faults),
    }


def _settings(manifest: Manifest) -> dict[str, Any]:
    """The resolved settings, after a look whether they are any."""
    tree = unstamped(dict(manifest.resolved), "the manifest")
    return validate(tree, "the manifest").model_dump(mode="json")


def _same_coordinator(path: Path, url: str, key: str) -> None:
    """An error if another answers at an address than the first time."""
    known = _read(path)
    if known.setdefault(url, key) != key:
        raise CorruptError(
            f"{url} has another key than before; if who runs it says so, remove its line from {path}"
        )
    write_json(path, known)


def _forget(path: Path, url: str) -> None:
    write_json(path, {known: key for known, key in _read(path).items() if known != url})


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _downloads(manifest: Manifest) -> str:
    """What will be fetched, as far as anybody knows before there is data."""
    if manifest.download:
        return f"about {manifest.download / 1e6:.1f} MB for one training"
    source = sum(file.size for file in manifest.inputs)
    return f"parts of {source / 1e6:.1f} MB" if source else "what each unit reads"


def _room(limits: Limits) -> str:
    return "kept while there is room" if limits.disk is None else f"kept up to {limits.disk:g} GB"


def _memory(count: int) -> str:
    return f"{count / 1e9:.0f} GB of memory"


def sentence(answer: dict[str, Any]) -> str:
    """What came of it, for a person."""
    handed = f"{counted(answer['submitted'], 'unit')} handed in, {answer['accepted']} accepted so far"
    return f"Ended ({answer['ended']}): {handed}, {counted(answer['credits'], 'credit')}."
