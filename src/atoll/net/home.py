"""What a worker keeps on its disk: its key, files by their hashes, and the leases that it holds."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import AtollError, ConfigError
from atoll.net import keys
from atoll.net.client import Rate
from atoll.net.protocol import Delegation, File, LeaseOffer, Receipt, Result, parse
from atoll.net.shelves import SOURCE
from atoll.net.work import CHAIN, MADE
from atoll.runs import file_digest, read_json, replacing, write_json

OFFER, RESULT, UNIT, RESOLVED, LOG, RUN = (
    "offer.json",
    "result.json",
    "unit.json",
    "resolved.json",
    "log.txt",
    "run",
)
RATES = "rates.json"
DEVICE, DELEGATION = "device.key", "delegation.json"
"""This device's key, and for whom and until when it acts."""


class Home:
    """A folder of a worker's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("files", "leases", "keys"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "keys").chmod(0o700)

    @property
    def keys(self) -> Path:
        """Where the key is; no job may look there."""
        return self.folder / "keys"

    def key(self) -> Ed25519PrivateKey:
        """This device's key."""
        return keys.read_or_make(self.keys / DEVICE)

    def delegation(self, now: float, phrase: str = "") -> tuple[Delegation, str]:
        """Whose device this is, and, for a new account, the 24 words that are shown once and kept nowhere.

        A phrase lets it act for another year, or for the phrase's account from now on.
        """
        known = self._known()
        if known is not None and not phrase:
            if known.expires <= now:
                raise ConfigError(
                    "this machine may no longer act for its account: that ends after a year; "
                    "`atoll join URL --recover` asks for the account's 24 words and renews it"
                )
            return known, ""
        new = phrase or keys.new_phrase()
        account = keys.account_key(new)
        if known is not None and known.account != keys.public_hex(account):
            # A device acts for one account: another gets a key of its own, and the old one is kept.
            (self.keys / DEVICE).replace(self.keys / f"device-{known.device[:16]}.key")
        made = keys.delegate(account, keys.public_hex(self.key()), now + keys.YEAR)
        write_json(self.keys / DELEGATION, made.model_dump(mode="json"))
        return made, "" if phrase else new

    def _known(self) -> Delegation | None:
        """For whom this device acts, if it does."""
        path = self.keys / DELEGATION
        known = parse(Delegation, path.read_bytes()) if path.is_file() else None
        return known if known is not None and known.device == keys.public_hex(self.key()) else None

    def place(self, sha256: str) -> Path:
        """Where a file of this hash is, or will be."""
        return self.folder / "files" / sha256

    def keep(self, path: Path, file: File) -> None:
        """A file of a job, to be had again by its hash."""
        place = self.place(file.sha256)
        if not place.is_file():
            _link(path, place)

    def files(self) -> dict[str, int]:
        """The sizes of all files that are here by their hashes, those needed last first."""
        entries = [
            (path.name, path.stat()) for path in (self.folder / "files").iterdir() if len(path.name) == 64
        ]
        return {name: facts.st_size for name, facts in sorted(entries, key=lambda pair: -pair[1].st_atime)}

    def forget(self, room: int, needed: Iterable[File] = ()) -> None:
        """Remove the files that were not needed for the longest time, until all that is left has room."""
        kept = {file.sha256 for file in needed}
        files = sorted((self.folder / "files").iterdir(), key=lambda path: path.stat().st_atime)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= room:
                return
            if path.name not in kept:
                total -= path.stat().st_size
                path.unlink()

    def attempt(self) -> str:
        """Under which name work is asked for: the same until an answer is here, whatever dies meanwhile.

        So a lease that was given to a process that did not live to hear of it is not lost.
        """
        path = self.folder / "attempt"
        if not path.is_file():
            with replacing(path) as beside:
                beside.write_text(secrets.token_hex(16), encoding="ascii")
        return path.read_text(encoding="ascii").strip()

    def answered(self) -> None:
        """The next request is another one."""
        (self.folder / "attempt").unlink(missing_ok=True)

    def keep_promise(self, receipt: Receipt) -> None:
        """What the coordinator has promised about the log: evidence, if it does not keep it."""
        if receipt.promise:
            path = self.folder / "receipts" / f"{receipt.submission}.json"
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as beside:
                beside.write_text(receipt.promise, encoding="utf-8")

    def keep_rates(self, up: Rate, down: Rate) -> None:
        """How fast this machine's line was, for the next start."""
        write_json(self.folder / RATES, {"up": up.mbit, "down": down.mbit})

    def rates(self) -> tuple[Rate, Rate]:
        """As it was the last time."""
        known: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError, AtollError):
            known = {name: float(value) for name, value in read_json(self.folder / RATES).items()}
        return Rate(known.get("up", 0.0)), Rate(known.get("down", 0.0))

    def leases(self) -> Iterator["Held"]:
        """The leases that are here, whole."""
        for folder in sorted((self.folder / "leases").iterdir()):
            with contextlib.suppress(OSError, AtollError):
                yield Held(folder, parse(LeaseOffer, (folder / OFFER).read_bytes()))

    def hold(self, offer: LeaseOffer, resolved: object) -> "Held":
        """Write a lease down before anything is done for it."""
        held = Held(self.folder / "leases" / offer.lease, offer)
        write_json(held.folder / RESOLVED, resolved)
        write_json(held.folder / UNIT, offer.unit.model_dump(mode="json"))
        if offer.resume is not None and offer.unit.every and not (held.folder / CHAIN).exists():
            steps = (
                offer.unit.first + number * offer.unit.every for number in range(len(offer.resume.chain))
            )
            write_json(held.folder / CHAIN, dict(zip(map(str, steps), offer.resume.chain, strict=True)))
        write_json(held.folder / OFFER, offer.model_dump(mode="json"))
        return held


@dataclass(frozen=True)
class Held:
    """One lease and the folder in which its unit is done."""

    folder: Path
    offer: LeaseOffer

    @property
    def run(self) -> Path:
        """The run's folder, as far as the unit needs it."""
        return self.folder / RUN

    @property
    def done(self) -> bool:
        """Whether its result is here."""
        return (self.folder / RESULT).is_file()

    @property
    def made(self) -> Path:
        """What the job says that it made."""
        return self.folder / MADE

    @property
    def chain(self) -> Path:
        """Where it notes the hashes of its states."""
        return self.folder / CHAIN

    @property
    def inputs(self) -> list[File]:
        """What the unit reads, and the state that another has left; of a file in both, the state's."""
        resumed = self.offer.resume.files if self.offer.resume is not None else ()
        files = {file.path: file for file in (*self.offer.unit.inputs, *resumed)}
        return list(files.values())

    def lay_out(self, home: Home) -> None:
        """Put files in their places; what a job has made there since stays."""
        laid = self.folder / ".laid-out"
        if laid.exists():
            return
        shutil.rmtree(self.run, ignore_errors=True)
        for file in self.inputs:
            place, target = home.place(file.sha256), self.run / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.path.endswith((".json", ".jsonl")):
                shutil.copyfile(place, target)
            else:
                _link(place, target)
            if file.path.startswith(f"{SOURCE}/"):
                os.utime(target, (0, 0))  # large sources are known by sizes and times, which are ours
        self.run.mkdir(parents=True, exist_ok=True)
        laid.touch()

    def result(self) -> Result:
        """What was made."""
        return parse(Result, (self.folder / RESULT).read_bytes())

    def drop(self) -> None:
        """Throw it away."""
        (self.folder / OFFER).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_whole(path: Path, file: File) -> bool:
    """Whether a file is here as it should be."""
    return path.is_file() and path.stat().st_size == file.size and file_digest(path) == file.sha256


def _link(path: Path, place: Path) -> None:
    """A second name of a file, or where there are no such names a copy."""
    try:
        place.unlink(missing_ok=True)
        os.link(path, place)
    except OSError:
        with replacing(place) as beside:
            shutil.copyfile(path, beside)
