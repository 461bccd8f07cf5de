"""Which work is looked at again, by whom, and what must be at stake so that cheating does not pay.

Pure: a record, a policy and public randomness in, a decision out, so that anybody can decide it again.
"""

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from atoll.config import Section

Judgement = Literal["agrees", "inconclusive", "differs"]
"""What an auditor says of an interval: what was committed to, within the band; near it; something else."""
State = Literal["pending", "accepted", "rejected", "redo"]
"""`redo`: nobody is paid and nobody is blamed; `rejected`: a hard failure, with evidence."""


class AuditPolicy(Section):
    """How often work is replayed and what is held back; part of the manifest."""

    first: int = Field(10, ge=1)
    """Units of an account and numerics class that are all audited, also after a hard failure."""
    floor: float = Field(0.05, gt=0, le=1)
    """The audit rate below which no record brings anybody."""
    everywhere: float = Field(0.01, ge=0, lt=1)
    """Random audits of all, beside those."""
    second: float = Field(0.1, ge=0, le=1)
    """The share of audits that another auditor repeats, unasked."""
    canaries: float = Field(0.1, gt=0, lt=1)
    """The share of an auditor's units that are known to be bad."""
    collusion: float = Field(0.2, ge=0, lt=1)
    """The share of auditors that is assumed to be in the hand of the one who is audited."""
    margin: float = Field(1.25, ge=1)
    """Escrow over what is just enough."""
    window: float = Field(7 * 86400.0, ge=0)
    """Seconds within which an accepted checkpoint can be disputed."""
    descendants: int = Field(2, ge=1)
    """Audited segments that must follow one that was not audited itself."""
    patience: float = Field(300.0, ge=0)
    """Seconds for which auditors are drawn and of one numerics class, and states are waited for."""
    strikes: int = Field(2, ge=1)
    """Proven hard failures after which an account gets no more work."""
    release: float = Field(0.0, ge=0, le=1)
    """The share of segments that are replayed as a whole before they are final; of the others an interval."""


@dataclass(frozen=True)
class Record:
    """What is known of an account in one numerics class."""

    verified: int = 0
    """Audits passed since the last hard failure."""
    held: float = 0.0
    """Escrow of the lineage at hand, in units of the price of the unit at hand."""


@dataclass(frozen=True)
class Audit:
    """Whether a unit is replayed, and which of its intervals."""

    due: bool
    interval: int | None = None
    """Its number, 0 from the first committed state to the second."""
    repeated: bool = False
    """Whether a second auditor does the same, unasked."""
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """What one auditor found."""

    account: str
    judgement: Judgement
    same_class: bool
    """Whether the auditor's numerics class is the worker's, so that a replay should be bit-equal."""


@dataclass(frozen=True)
class Outcome:
    """What follows from all verdicts on one interval."""

    state: State
    contradicted: tuple[str, ...] = ()
    """Auditors whose verdict the others do not share."""
    reason: str = ""


def fraction(value: bytes, *purpose: str) -> float:
    """A number in [0, 1) of a beacon's value, for one purpose."""
    digest = hashlib.sha256(value + "\0".join(purpose).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def detection(policy: AuditPolicy) -> float:
    """How likely an audit of false work ends with its rejection, if some auditors are its author's friends.

    The auditor is honest; or a friend, but a second one is asked and is honest: then a third decides.
    """
    friends = policy.collusion
    return (1 - friends) + friends * policy.second * (1 - friends)


def caught(policy: AuditPolicy, rate: float) -> float:
    """How likely false work is found out at this audit rate."""
    return (1 - (1 - rate) * (1 - policy.everywhere)) * detection(policy)


def required_escrow(policy: AuditPolicy, rate: float) -> float:
    """Units' worth of credit that must be held so that a false unit loses: E >= (1 - p) / p.

    With probability p a false unit costs what is held, else it brings one price; whoever falsifies a part of
    a unit is found out less often in the same measure as it saves less, so that the bound is the same.
    """
    p = caught(policy, rate)
    return policy.margin * (1 - p) / p


def escrow_units(policy: AuditPolicy) -> int:
    """How many units' credit is held back of an account at the floor: what the manifest shows."""
    return math.ceil(required_escrow(policy, policy.floor))


def audit_rate(policy: AuditPolicy, record: Record) -> float:
    """How likely a unit is replayed: all at first, then ever fewer, but never fewer than the escrow bears.

    An account that is known, in a lineage in which it has nothing at stake yet, is audited as if it were new.
    """
    if record.verified < policy.first:
        return 1.0
    trusted = 1 / (2 + record.verified - policy.first)
    p = policy.margin / (policy.margin + record.held)  # where `required_escrow` is just what is held
    staked = 1 - (1 - min(1.0, p / detection(policy))) / (1 - policy.everywhere)
    return min(1.0, max(policy.floor, trusted, staked))


def audit_of(
    policy: AuditPolicy,
    record: Record,
    value: bytes,
    submission: str,
    intervals: int,
    doubts: Collection[str] = (),
) -> Audit:
    """Whether this submission is replayed and where, from a beacon's value of after its commitment.

    `doubts` are what admission or the held-out gate found odd: they make sure of an audit and punish nobody.
    """
    rate = audit_rate(policy, record)
    number = int(fraction(value, submission, "interval") * intervals)
    repeated = fraction(value, submission, "second") < policy.second
    if doubts:
        return Audit(True, number, repeated, f"odd: {', '.join(sorted(doubts))}")
    if fraction(value, submission, "audit") < rate:
        reason = "one of the first" if rate == 1 else f"at the account's rate of {rate:.3f}"
        return Audit(True, number, repeated, reason)
    if fraction(value, submission, "everywhere") < policy.everywhere:
        return Audit(True, number, repeated, "one of the random audits of all")
    return Audit(False)


def is_canary(policy: AuditPolicy, value: bytes, audit: str) -> bool:
    """Whether an auditor is given a unit that is known to be bad in the place of this one."""
    return fraction(value, audit, "canary") < policy.canaries


def auditors(value: bytes, submission: str, accounts: Collection[str], owner: str) -> list[str]:
    """In which order accounts may audit a submission: drawn after its commitment, never its owner's."""
    return sorted(
        (account for account in set(accounts) if account != owner),
        key=lambda account: hashlib.sha256(value + f"{submission}\0auditor\0{account}".encode()).digest(),
    )


def eligible(
    value: bytes, submission: str, account: str, accounts: int, waited: float, policy: AuditPolicy
) -> bool:
    """Whether an account may audit a submission now: half of all at first, drawn afterwards, later anybody.

    Of a handful nobody is left out: who is there would be waited for.
    """
    share = 1.0 if waited >= policy.patience else max(0.5, 4 / max(1, accounts))
    return fraction(value, submission, "auditor", account) < share


def settle(verdicts: Sequence[Verdict], *, repeated: bool = False) -> Outcome:
    """What follows from the verdicts so far; `repeated` asks for two even if the first is content.

    Nobody is rejected on one auditor's word. Two who agree decide; an inconclusive pair is nobody's fault.
    """
    if len({verdict.account for verdict in verdicts}) != len(verdicts):
        raise ValueError("an account has judged twice; audits of one interval need different accounts")
    needed = 2 if repeated or any(one.judgement != "agrees" for one in verdicts) else 1
    if len(verdicts) < needed:
        return Outcome("pending", reason=f"{needed - len(verdicts)} more auditors are needed")
    counts = {name: [one for one in verdicts if one.judgement == name] for name in ("agrees", "differs")}
    against = {"agrees": "differs", "differs": "agrees"}
    for name, state in (("differs", "rejected"), ("agrees", "accepted")):
        if len(counts[name]) >= needed and len(counts[name]) > len(counts[against[name]]):
            wrong = tuple(one.account for one in counts[against[name]])
            return Outcome(state, wrong, f"{len(counts[name])} of {len(verdicts)} auditors: {name}")  # type: ignore[arg-type]
    if len(verdicts) < 3:
        return Outcome("pending", reason="auditors are not of one mind; a third decides")
    return Outcome("redo", reason="auditors came to no conclusion: the unit is made again, nobody is blamed")


def after(record: Record, outcome: Outcome) -> Record:
    """The record after an audit: hard failures begin again from nothing, soft ones change nothing."""
    if outcome.state == "accepted":
        return replace(record, verified=record.verified + 1)
    return replace(record, verified=0) if outcome.state == "rejected" else record


def vesting(policy: AuditPolicy, held: int) -> int:
    """How many of an account's held units, the oldest first, may be paid out."""
    return max(0, held - escrow_units(policy))


def overhead(policy: AuditPolicy, intervals: int) -> float:
    """Replayed steps over trained ones at the floor, with one of so many intervals replayed per audit."""
    rate = 1 - (1 - policy.floor) * (1 - policy.everywhere)
    return rate * (1 + policy.second) / (1 - policy.canaries) / intervals


def promises(policy: AuditPolicy, intervals: int) -> dict[str, float]:
    """What the rates promise and cost, for the manifest, where a segment has so many intervals.

    That cheating does not pay costs what is replayed at the floor; that a model is clean is another promise.
    """
    return {
        "intervals": intervals,
        "replayed_at_the_floor": overhead(policy, intervals),
        "replayed_before_the_end": policy.release + (1 - policy.release) / intervals,
        "one_false_interval_missed": (1 - policy.release) * (1 - 1 / intervals),
    }


def released_whole(policy: AuditPolicy, value: bytes, submission: str) -> bool:
    """Whether all of a segment is replayed before it is final, and not an interval alone."""
    return fraction(value, submission, "release") < policy.release
