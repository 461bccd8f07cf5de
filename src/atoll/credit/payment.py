"""Who is paid what for an epoch: by audited values, smoothed, linear, only what is statistically there."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SURE = 1.0
"""Standard errors that a value must be above zero to be paid for, and below zero to be a strike."""
SMOOTHING = 0.8
"""How much of an earlier epoch's value stays."""
FLAT = 0.3
"""The part of the pool that is paid for being there, since values are uncertain."""
STRIKES = 3
"""Epochs in a row with harm after which a part is no longer asked."""


TREASURY, ESCROW = "treasury", "escrow"
"""Where a ledger takes credit from, and where it puts what may yet be forfeited."""
LINES = 64
"""Entries of one event of a ledger."""
Posting = tuple[str, str, str, int]
"""(account, bucket, lineage, milli-credits), as an entry of `atoll.net.ledger`."""


@dataclass(frozen=True)
class Account:
    """What is remembered of a part from one epoch to the next."""

    smoothed: float = 0.0
    strikes: int = 0
    cap: float = 1.0
    """The largest weight that the part may have, of what the router gives it."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch pays, and the accounts after it."""

    pay: Mapping[str, float]
    accounts: Mapping[str, Account] = field(default_factory=dict)


def settle(
    pool: float,
    values: Mapping[str, tuple[float, float]],
    uptime: Mapping[str, float],
    before: Mapping[str, Account],
    *,
    flat: float = FLAT,
) -> Epoch:
    """pay_i = R (ρ · uptime_i / Σ uptime + (1-ρ) · ā_i / Σ ā), with ā the smoothed max(0, φ_i - z·SE_i).

    `values` are (φ_i, SE_i). Linear in φ: the values are split-neutral already, so that splitting up gains
    nothing. What nobody earned is not paid out: the pool keeps it.
    """
    accounts = {name: _next(before.get(name, Account()), *values[name]) for name in values}
    earned = math.fsum(account.smoothed for account in accounts.values())  # the same in whatever order
    present = math.fsum(uptime.get(name, 0.0) for name in values)
    pay = {}
    for name, account in accounts.items():
        there = uptime.get(name, 0.0) / present if present else 0.0
        worth = account.smoothed / earned if earned else 0.0
        pay[name] = pool * (flat * there + (1 - flat) * worth)
    return Epoch(pay, accounts)


def _next(account: Account, value: float, error: float) -> Account:
    """A part's account after an epoch: harm that is statistically there halves its weight, three end it."""
    certain = max(0.0, value - SURE * error)
    smoothed = SMOOTHING * account.smoothed + (1 - SMOOTHING) * certain
    if value + SURE * error >= 0:
        return Account(smoothed, 0, account.cap)
    strikes = account.strikes + 1
    return Account(smoothed, strikes, 0.0 if strikes >= STRIKES else account.cap / 2)


def postings(pay: Mapping[str, float], lineage: str) -> list[list[Posting]]:
    """What an epoch pays as events of a ledger: double entries of whole milli-credits, each summing to zero.

    Rounded down, so that nobody is paid what is not in the pool; whoever gets nothing has no entry.
    """
    return events((name, ESCROW, lineage, math.floor(1000 * value)) for name, value in pay.items())


def events(paid: Iterable[Posting]) -> list[list[Posting]]:
    """Entries of escrow in as few events as they fit in, each with what the treasury gives for it."""
    some = [entry for entry in paid if entry[3] > 0]
    groups = [some[start : start + LINES - 1] for start in range(0, len(some), LINES - 1)]
    return [[(TREASURY, TREASURY, "", -sum(entry[3] for entry in group)), *group] for group in groups]


def divided(amount: int, makers: Mapping[str, int]) -> dict[str, int]:
    """A part's pay among those who made it, by how much each did; rounded down."""
    total = sum(makers.values())
    return {name: amount * done // total for name, done in sorted(makers.items())} if total > 0 else {}


def royalties(
    price: float, display: Sequence[float], audited: Sequence[float], usual: Sequence[float]
) -> list[float]:
    """The price of one served picture by its display shares, each scaled by audited over usual share.

    `usual` is a part's mean display share over many pictures: whoever inflates the one inflates the other.
    Nothing is paid where nobody has an audited value.
    """
    scaled = [
        max(0.0, share) * max(0.0, value) / mean if mean > 0 else 0.0
        for share, value, mean in zip(display, audited, usual, strict=True)
    ]
    total = sum(scaled)
    return [price * part / total if total else 0.0 for part in scaled]
