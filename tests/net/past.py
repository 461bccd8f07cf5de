"""A small honest history, and a source that serves it: what tests falsify."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.net import keys, ledger, notes, tiles, tree
from atoll.net.notes import Checkpoint
from atoll.net.protocol import File, Manifest, Numerics, Unit
from atoll.net.statements import Signer
from atoll.net.verification.beacon import ChainBeacon
from atoll.net.verification.policy import AuditPolicy

ORIGIN = "run.example/log"
COORDINATOR, LOG, ANN, ANN_DEVICE, BOB, BOB_DEVICE = (
    Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in range(1, 7)
)
SECRET = bytes(32)
BEACON = ChainBeacon.publish(SECRET, genesis=0.0, period=3.0, rounds=4096)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def person(account: Ed25519PrivateKey, device: Ed25519PrivateKey) -> dict[str, Any]:
    delegation = keys.delegate(account, keys.public_hex(device), 1e6)
    return {
        "account": keys.identity(delegation.account),
        "device": keys.identity(delegation.device),
        "expires": delegation.expires,
        "delegation": delegation.model_dump(mode="json"),
    }


PEOPLE = {"ann": person(ANN, ANN_DEVICE), "bob": person(BOB, BOB_DEVICE)}


@dataclass
class Past:
    """Statements to come, files, and what becomes of them when they are published."""

    manifest: Manifest = field(
        default_factory=lambda: Manifest(
            name="tiny",
            resolved={"name": "tiny"},
            inputs=(File(path="data/part-0", sha256=sha("data"), size=4),),
            coordinator=notes.public_hex(COORDINATOR),
            log=notes.public_hex(LOG),
            policy={
                "audit": AuditPolicy().model_dump(mode="json"),
                "beacon": BEACON.model_dump(mode="json"),
            },
        )
    )
    said: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=lambda: {sha("data"): b"data"})
    files: dict[str, bytes] = field(default_factory=dict)
    address: str = "memory"
    now: float = 10.0

    @property
    def run(self) -> str:
        return self.manifest.digest

    def say(self, kind: str, **facts: Any) -> int:
        self.now += 10.0
        self.said.append((kind, facts, self.now))
        return len(self.said) - 1

    def file(self, path: str, text: str) -> File:
        self.artifacts[sha(text)] = text.encode()
        return File(path=path, sha256=sha(text), size=len(text))

    def segment(self, who: str, number: int, state: str, before: File | None) -> File:
        """One unit of an expert from lease to credit, audited by the other account."""
        person, other = PEOPLE[who], PEOPLE["bob" if who == "ann" else "ann"]
        first, name, submission = 10 * number, f"expert 0 @ {10 * number}..{10 * number + 10}", f"s{number}"
        inputs = (self.manifest.inputs[0], *([before] if before is not None else []))
        unit = Unit(
            run=self.run, name=name, stage="expert 0", role="train", first=first, last=first + 10,
            every=10, inputs=inputs, price=100,
        )  # fmt: skip
        own = {key: person[key] for key in ("account", "device")}
        about = {"lease": f"l{number}", "unit": name, "fence": 1, **own}
        definition = unit.model_dump(mode="json")
        self.say("lease", **about, price=100, first=first, last=first + 10, definition=definition, copy=0)
        after = self.file(f"experts/00/state/step-{first + 10:08d}.safetensors", state)
        chain = [before.sha256 if before is not None else sha("start"), after.sha256]
        outputs = [after.model_dump(mode="json")]
        self.say(
            "result", **about, submission=submission, outputs=outputs, chain=chain, steps=10,
            numerics=Numerics().model_dump(mode="json"), digest=unit.digest,
        )  # fmt: skip
        number_of = BEACON.round_after(self.now)
        draw = ChainBeacon(SECRET, BEACON, lambda: 1e9).draw(number_of)
        self.say("beacon", submission=submission, round=draw.round, value=draw.value, proof="")
        passed = {"submission": submission, "unit": name, "verdict": "pass"}
        self.say("verdict", **passed, check="admission", by="coordinator")
        self.say("verdict", **passed, check="replay", by=other["account"])
        self.say("decision", submission=submission, unit=name, state="accepted", canonical=True, price=100)
        entries = [list(one) for one in ledger.earn(person["account"], 100, "expert 0")]
        self.say("credit", event=f"earn {submission}", reason="work", entries=entries, submission=submission)
        return after

    def envelopes(self, key: Ed25519PrivateKey = COORDINATOR) -> list[bytes]:
        signer = Signer(key, self.run)
        return [signer.envelope(kind, facts, at) for kind, facts, at in self.said]

    def publish(self, envelopes: list[bytes] | None = None, key: Ed25519PrivateKey = LOG) -> "Past":
        """Files of the log, of what was said or of other entries."""
        entries = self.envelopes() if envelopes is None else envelopes
        assert len(entries) < 256
        leaves = [tree.leaf_hash(entry) for entry in entries]
        self.files = {
            tiles.path("entries", 0, len(entries)): tiles.bundle(entries),
            tiles.path(0, 0, len(entries)): b"".join(leaves),
            "checkpoint": notes.signed(Checkpoint(ORIGIN, len(entries), tree.root(leaves)), key),
        }
        return self

    def change(self, kind: str, number: int = 0, **facts: Any) -> None:
        """Other facts in the n-th statement of a kind."""
        place = [index for index, one in enumerate(self.said) if one[0] == kind][number]
        self.said[place] = (kind, {**self.said[place][1], **facts}, self.said[place][2])

    def remove(self, kind: str, number: int = 0) -> None:
        place = [index for index, one in enumerate(self.said) if one[0] == kind][number]
        del self.said[place]

    # What a source is:
    def log(self, name: str) -> bytes | None:
        return self.files.get(name)

    def digest(self, sha256: str) -> tuple[str, int] | None:
        data = self.artifacts.get(sha256)
        return None if data is None else (hashlib.sha256(data).hexdigest(), len(data))

    def save(self, sha256: str, path: Path) -> bool:
        data = self.artifacts.get(sha256)
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True


def honest(segments: int = 3) -> Past:
    """Two accounts that take turns at one expert."""
    past = Past()
    past.say("manifest", manifest=past.manifest.model_dump(mode="json"))
    for one in PEOPLE.values():
        past.say("account", **one)
    state: File | None = None
    for number in range(segments):
        state = past.segment("ann" if number % 2 == 0 else "bob", number, f"state {number}", state)
    return past
