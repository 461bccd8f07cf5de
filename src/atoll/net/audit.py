"""A stranger's check of everything: what of a history holds, what does not, what could not be checked."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, CorruptError
from atoll.net import facts, history, lineage, log, notes, replaying, rules, statements, tiles
from atoll.net.history import History
from atoll.net.notes import Checkpoint
from atoll.net.rules import Known
from atoll.net.sources import Source

TITLES = {
    "checkpoint": "the checkpoint is signed with the log's key",
    "entries": "every entry of the log can be read",
    "tree": "entries and tiles have the signed root",
    "manifest": "the log begins with the signed manifest",
    "statements": "every statement is the coordinator's, about this run",
    "accounts": "devices act for accounts that signed so",
    "leases": "leases go to such devices, with rising fences",
    "results": "results belong to leases and commit to every state",
    "challenges": "audits were drawn after commitments, by the beacon",
    "verdicts": "nobody judged work of their own",
    "decisions": "work was accepted on verdicts, once for each unit",
    "credit": "credit balances, once, for accepted work, at its price",
    "epochs": "parts are paid for by their stated values, to who made them",
    "bans": "who was shut out had failed, and got no more work",
    "lineage": "every unit reads what somebody made",
    "artifacts": "files are what they are called",
    "past": "the log goes on from what was remembered",
    "receipts": "receipts were kept",
    "witnesses": "witnesses saw the same log",
    "replay": "segments taken again come to the same",
}
"""Every check by its name, in the order of a report."""
SHOWN = 5
"""Faults of one check that a page shows."""
Report = Callable[[str, int, int], None]


@dataclass
class Check:
    """One promise, and what was found of it."""

    name: str
    count: int = 0
    """Things that were looked at."""
    faults: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """fails, holds or unchecked."""
        if self.faults:
            return "fails"
        return "unchecked" if self.unchecked or not self.count else "holds"


@dataclass(frozen=True)
class Asked:
    """What an auditor brings along, and how much it should do."""

    log_key: str | None = None
    remembered: Checkpoint | None = None
    receipts: Sequence[bytes] = ()
    witnesses: Mapping[str, str] = field(default_factory=dict)
    replays: int = 0
    """Segments to take again."""
    seed: int | None = None
    now: float = 0.0


def asked(
    log_key: str | None,
    since: Path | None,
    receipts: Path | None,
    witnesses: Sequence[str],
    replays: int,
    seed: int | None,
    now: float,
) -> Asked:
    """What somebody brings along, from files and words."""
    for path in (since, receipts):
        if path is not None and not path.exists():
            raise ConfigError(f"there is no {path}")
    if any("=" not in one for one in witnesses):
        raise ConfigError("--witness takes NAME=KEY, the key as 64 hexadecimal digits")
    if replays:
        replaying.require_torch()
    note = since.read_bytes().decode(errors="replace") if since is not None else ""
    return Asked(
        log_key=log_key,
        remembered=notes.checkpoint_of(note.rpartition("\n\n")[0] + "\n") if since is not None else None,
        receipts=[path.read_bytes() for path in sorted(receipts.glob("*.json"))] if receipts else (),
        witnesses=dict(one.split("=", 1) for one in witnesses),
        replays=replays,
        seed=seed,
        now=now,
    )


@dataclass(frozen=True)
class Audit:
    """One page of it."""

    address: str
    run: str
    name: str
    checkpoint: Checkpoint
    forks: tuple[int, ...]
    """Entries from which on another coordinator goes on."""
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing that was checked is false."""
        return not any(check.faults for check in self.checks)

    @property
    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "address": self.address,
            "run": self.run,
            "name": self.name,
            "holds": self.holds,
            "entries": self.checkpoint.size,
            "root": self.checkpoint.root.hex(),
            "forks": list(self.forks),
            "checks": {
                check.name: {
                    "state": check.state,
                    "count": check.count,
                    "faults": check.faults,
                    "unchecked": check.unchecked,
                }
                for check in self.checks
            },
        }

    @property
    def text(self) -> str:
        """For a person."""
        head = (
            f"{self.name or 'A run'} at {self.address}: {self.checkpoint.size:,} entries, run {self.run:.12}"
        )
        lines = [head]
        if self.forks:
            places = ", ".join(map(str, self.forks))
            lines.append(f"It went on under another coordinator from entry {places} on.")
        for state, title in (
            ("fails", "What does not hold"),
            ("holds", "What holds"),
            ("unchecked", "What could not be checked"),
        ):
            checks = [check for check in self.checks if check.state == state]
            if checks:
                lines += ["", title, *(line for check in checks for line in _lines(check))]
        end = (
            "Nothing that was checked is false."
            if self.holds
            else "This history is not what it claims to be."
        )
        return "\n".join([*lines, "", end])


def _lines(check: Check) -> list[str]:
    mark = {"fails": "✗", "holds": "✓", "unchecked": "?"}[check.state]
    sentences = check.faults or check.unchecked
    more = [f"      … and {len(sentences) - SHOWN} more"] if len(sentences) > SHOWN else []
    return [
        f"  {mark} {TITLES[check.name]} ({check.count:,})",
        *(f"      {sentence}" for sentence in sentences[:SHOWN]),
        *more,
    ]


def audit(source: Source, asked: Asked, report: Report | None = None) -> Audit:
    """Check everything that can be checked at a source."""
    past = history.read(source, asked.log_key)
    known = Known(past)
    checks = {name: Check(name) for name in TITLES}
    _the_log(past, checks)
    for name, rule in rules.RULES.items():
        checks[name].faults += rule(known)
        checks[name].count = _counted(name, past)
    unsigned = sum(1 for _, result in past.of(facts.Result) if result.signed is None)
    if unsigned:
        sentence = f"{unsigned} results bear no signature of the device that made them"
        checks["results"].unchecked.append(sentence)
    if not known.is_policed:
        checks["decisions"].unchecked.append("the manifest promises no audits; work was taken as it came")
    checks["challenges"].unchecked += rules.unsigned_rounds(known)
    _artifacts(source, known, checks["artifacts"], report)
    _brought(source, past, asked, checks)
    _replays(source, known, asked, checks["replay"], report)
    return Audit(
        source.address,
        past.run,
        str(past.manifest.get("name", "")),
        past.checkpoint,
        tuple(entry.index for entry, _ in past.of(facts.Fork)),
        tuple(checks.values()),
    )


def _the_log(past: History, checks: Mapping[str, Check]) -> None:
    for name, faults in past.faults.items():
        checks[name].faults += faults
    for name in ("checkpoint", "manifest"):
        checks[name].count = 1
    for name in ("entries", "tree", "statements"):
        checks[name].count = past.checkpoint.size


def _counted(name: str, past: History) -> int:
    kinds: dict[str, type[facts.Facts]] = {
        "accounts": facts.Account,
        "leases": facts.Lease,
        "results": facts.Result,
        "challenges": facts.Beacon,
        "verdicts": facts.Verdict,
        "decisions": facts.Decision,
        "credit": facts.Credit,
        "epochs": facts.Credit,
        "bans": facts.Lease,
        "lineage": facts.Lease,
    }
    return sum(1 for _ in past.of(kinds[name]))


def _artifacts(source: Source, known: Known, check: Check, report: Report | None) -> None:
    """Every file of the run as it stands; and states on the way, as far as they are kept."""
    needed = {file.sha256: file for file in lineage.files(known).values()}
    outputs = [result.outputs for _, result in known.standing() if not isinstance(result.outputs, str)]
    files = {**{file.sha256: file for listed in outputs for file in listed}, **needed}
    gone = 0
    for number, (sha256, file) in enumerate(files.items()):
        actual = source.digest(sha256)
        if actual is None and sha256 not in needed:
            gone += 1
        elif actual is None:
            check.faults.append(f"{file.path} ({sha256:.12}) is missing")
        elif actual != (sha256, file.size):
            check.faults.append(f"{file.path} ({sha256:.12}) is another file than was accepted")
        check.count += actual is not None
        if report is not None:
            report("files", number + 1, len(files))
    if gone:
        check.unchecked.append(f"{gone} files that were replaced since are not kept here")


def _brought(source: Source, past: History, asked: Asked, checks: Mapping[str, Check]) -> None:
    """What the auditor has from elsewhere: an older checkpoint, receipts, keys of witnesses."""
    if asked.remembered is None:
        checks["past"].unchecked.append("no earlier checkpoint was given (--since)")
    else:
        checks["past"].count = 1
        problem = history.consistent(source, asked.remembered, past.checkpoint)
        checks["past"].faults += [problem] if problem is not None else []
    _receipts(source, past, asked, checks["receipts"])
    check = checks["witnesses"]
    if not asked.witnesses:
        check.unchecked.append("no witness is known (--witness NAME=KEY)")
        return
    check.count = len(asked.witnesses)
    try:
        signed = notes.witnesses(past.note, asked.witnesses)
        check.unchecked += [f"{name} has not cosigned" for name in asked.witnesses if name not in signed]
    except CorruptError as error:
        check.faults.append(str(error))


def _receipts(source: Source, past: History, asked: Asked, check: Check) -> None:
    if not asked.receipts:
        check.unchecked.append("no receipts were given (--receipts)")
    reader = tiles.Reader(source.log, past.checkpoint.size)
    keys = {past.coordinator, *(fork.coordinator for _, fork in past.of(facts.Fork))}
    for number, envelope in enumerate(asked.receipts):
        check.count += 1
        try:
            promise = statements.opened(envelope, keys)
            answer = log.kept(promise, reader, asked.now)
        except (CorruptError, KeyError, TypeError, ValueError) as error:
            check.faults.append(f"receipt {number + 1} cannot be checked: {error}")
            continue
        if answer is False:
            check.faults.append(
                f"receipt {number + 1} promised entry {promise.facts['index']}, which is not there"
            )
        elif answer is None:
            check.unchecked.append(f"receipt {number + 1} has time until it must be there")


def _replays(source: Source, known: Known, asked: Asked, check: Check, report: Report | None) -> None:
    """Take a random sample of trainings again."""
    segments = [
        (lease.definition, result)
        for _, result in known.standing()
        for _, lease in [known.leases.get(result.lease, (None, None))]
        if lease is not None and lease.definition is not None and lease.definition.role == "train"
    ]
    chance = random.Random(asked.seed) if asked.seed is not None else random.SystemRandom()
    sample = chance.sample(segments, min(asked.replays, len(segments)))
    if not sample:
        check.unchecked.append(f"none of {len(segments)} segments was taken again (--replay N)")
    for number, (unit, result) in enumerate(sample):
        judgement, sentence = replaying.replay(source, known.history.manifest, unit, result)
        line = f"{unit.name}: {sentence}"
        if judgement == "differs":
            check.faults.append(line)
        elif judgement != "agrees":
            check.unchecked.append(line)
        else:
            check.count += 1
        if report is not None:
            report("segments", number + 1, len(sample))
