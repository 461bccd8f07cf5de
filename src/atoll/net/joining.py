"""From an address to a machine at work: key, manifest, what is downloaded, measurement, then the loop."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atoll.config import validate
from atoll.errors import CorruptError
from atoll.net import measuring
from atoll.net.client import Client, Throttle
from atoll.net.home import Home
from atoll.net.limits import Limits
from atoll.net.protocol import LeaseOffer, Manifest
from atoll.net.telling import Tell
from atoll.net.turn import Machine, SealedJobs, Start, Turn
from atoll.net.witness import Memory
from atoll.net.work import links_of, read_chain
from atoll.net.worker import Worker
from atoll.runs import read_json, stamped, write_json
from atoll.runs.parsing import unstamped
from atoll.storage.clock import CLOCK, Clock

MOVED = "moved.json"
"""In a worker's folder: where runs have moved to, by the addresses under which they were joined."""


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
        try:
            return self._introduced(client, home)
        except BaseException:
            client.close()
            raise

    def _introduced(self, client: Client, home: Home) -> Worker:
        self.tell.now(f"connecting: {self.url}")
        manifest, signed = client.manifest()
        _same_coordinator(home.folder / "known.json", self.url, signed.key)
        client.addresses += [one for one in manifest.addresses if one.rstrip("/") not in client.addresses]
        delegation, phrase = home.delegation(client.now(), self.phrase)
        joined = client.join(delegation, self.nickname)
        client.offset = joined.now - self.clock.date()
        self._introduce(manifest, joined.account, phrase)
        self.tell.now("measuring: what this machine can do, for a moment")
        capabilities = measuring.capabilities(home.folder, self.limits, self.clock.date(), self.seconds)
        self.tell.news(
            f"this machine: {capabilities.speed / 1e9:.0f} GFLOP/s, {_memory(capabilities.memory)}"
        )
        machine = Machine(client, home, self.tell, self.limits, self.stopping, self.clock, self.start)
        memory = Memory(home.folder / "logs" / f"{manifest.digest[:16]}.checkpoint", manifest.log)
        return Worker(machine, _settings(manifest), capabilities, memory=memory if manifest.log else None)

    def _introduce(self, manifest: Manifest, account: str, phrase: str) -> None:
        tell = self.tell
        tell.news(f"run {manifest.name}, {len(manifest.graph)} stages; you are {account[:12]}")
        if phrase:
            tell.news(
                "a new account was made; these 24 words are all that can restore it, and are not kept here:"
            )
            tell.news(phrase)
        size = (
            f"about {manifest.download / 1e6:.0f} MB for one unit" if manifest.download else "files of units"
        )
        tell.news(
            f"downloads: {size}, {_room(self.limits)}; licence of the data: {manifest.licence or 'not told'}"
        )

    def _fault(self, kind: str, /, **facts: Any) -> None:
        self.faults.append({"event": kind, **facts})
        if kind == "moved":
            self.tell.news(f"the run has moved to {', '.join(facts['addresses'])}")
            write_json(self.folder / MOVED, {**_read(self.folder / MOVED), self.url: facts["addresses"]})


def join(joining: Joining, *, once: bool = False) -> dict[str, Any]:
    """Work until there is nothing left, or somebody asks to stop; what came of it."""
    worker = joining.worker()
    try:
        reason = worker.run(once)
    finally:
        worker.machine.client.close()
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


def trial(joining: Joining) -> dict[str, Any]:
    """Do one unit twice and compare; nothing is handed in, and nothing earned."""
    worker = joining.worker()
    machine = worker.machine
    offer = machine.client.lease(worker.capabilities, secrets.token_hex(16))
    if not isinstance(offer, LeaseOffer):
        machine.client.close()
        return {"ended": offer.reason, "same": None, "sentence": offer.sentence}
    answers = []
    try:
        for number in range(2):
            held = machine.home.hold(offer, stamped(worker.resolved))
            joining.tell.news(f"{offer.unit.name}: time {number + 1} of 2, on trial")
            turn = Turn(machine, held)
            with turn.beating():
                worker.make(held, turn)
            made = read_json(held.made)
            files = {one["path"]: one["sha256"] for one in made["outputs"]}
            changing = [path for path in files if path.endswith(".jsonl")]  # it tells the time
            answers.append(
                [files | dict.fromkeys(changing, ""), links_of(offer.unit, read_chain(held.chain))]
            )
            held.drop()
    finally:
        machine.give_back(machine.home.hold(offer, stamped(worker.resolved)), "a trial", failed=False)
        machine.client.close()
    same = answers[0] == answers[1]
    joining.tell.news("both times the same bits" if same else "the two differ: this machine is not reliable")
    return {"ended": "trial", "same": same, "unit": offer.unit.name, "files": len(answers[0][0])}


def _settings(manifest: Manifest) -> dict[str, Any]:
    """The resolved settings, after a look whether they are any."""
    tree = unstamped(dict(manifest.resolved), "the manifest")
    return validate(tree, "the manifest").model_dump(mode="json")


def _same_coordinator(path: Path, url: str, key: str) -> None:
    """An error if another answers at an address than the first time."""
    known = _read(path)
    if known.setdefault(url, key) != key:
        raise CorruptError(f"{url} has another key than before; ask who runs it, then remove {path}")
    write_json(path, known)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _room(limits: Limits) -> str:
    return f"at most {limits.disk:g} GB" if limits.disk is not None else "kept while there is room"


def _memory(count: int) -> str:
    return f"{count / 1e9:.0f} GB of memory"


def sentence(answer: dict[str, Any]) -> str:
    """What came of it, for a person."""
    if answer.get("same") is not None:
        return (
            "Both times the same bits." if answer["same"] else "The two differ: do not rely on this machine."
        )
    if "submitted" not in answer:
        return str(answer["sentence"])
    counted = f"{answer['submitted']} units handed in, {answer['accepted']} accepted so far"
    return f"Ended ({answer['ended']}): {counted}, {answer['credits']:g} credits."
