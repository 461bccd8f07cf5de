"""What an epoch pays for the worth of parts: a function of what the log says, for who pays and who audits.

An epoch is stated once, with the values of parts on held-out samples; seed and pool are the manifest's, so
that nobody chose them by their result. What follows is arithmetic: `credit.payment`, and the work that each
account was credited for. The values anybody can measure again, with `atoll credit` on the run's files.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from atoll.credit import payment
from atoll.net import facts, ledger, lineage
from atoll.net.ledger import Entries, Entry

if TYPE_CHECKING:
    from atoll.net.rules import Known

Makers = Mapping[str, Mapping[str, int]]
"""Of each stage: the milli-credits that accounts earned by work on it that stands."""
Terms = tuple[int, int]
"""Milli-credits of an epoch's pool, and the seed of its draws."""


class Payment(NamedTuple):
    """One event of the ledger that an epoch pays by."""

    place: int
    """Of the epoch's statement in the log."""
    entries: Entries


def terms(resolved: Mapping[str, object]) -> Terms:
    """What a run has promised, by its settings as the manifest has them."""
    credit = resolved.get("credit")
    own = credit if isinstance(credit, dict) else {}
    seed = resolved.get("seed") if own.get("seed") is None else own["seed"]
    pool = own.get("pool")
    milli = math.floor(1000 * pool) if isinstance(pool, int | float) else 0
    return milli, seed if isinstance(seed, int) else 0


def events(stated: Iterable[facts.Epoch], makers: Makers) -> dict[str, Entries]:
    """Events of the ledger, by name, of the last epoch that is stated; those before it smooth its values.

    Of a part that nobody earned anything for, such as one that the host brought along, nobody is paid.
    """
    accounts: Mapping[str, payment.Account] = {}
    paid: Mapping[str, float] = {}
    number = 0
    for epoch in stated:
        there = dict.fromkeys(epoch.values, 1.0)
        settled = payment.settle(epoch.pool, epoch.values, there, accounts)
        accounts, paid, number = settled.accounts, settled.pay, epoch.epoch
    lines = [
        (account, payment.ESCROW, stage, amount)
        for stage in sorted(paid)
        for account, amount in payment.divided(math.floor(paid[stage]), makers.get(stage, {})).items()
    ]
    groups = payment.events(lines)
    return {
        f"epoch {number}" + (f", {place}" if place else ""): tuple(Entry(*line) for line in group)
        for place, group in enumerate(groups)
    }


def makers(known: "Known", index: int) -> Makers:
    """Who had earned what by which stage before an entry of the log, by work that stood then."""
    earned: dict[str, Counter[str]] = {}
    for entry, event in known.history.of(facts.Credit):
        if entry.index >= index or not _stood(known, event.submission or "", index):
            continue
        for account, bucket, stage, amount in event.entries:
            if bucket == payment.ESCROW and amount > 0:
                earned.setdefault(stage, Counter())[account] += amount
    return earned


def _stood(known: "Known", submission: str, index: int) -> bool:
    decisions = [one for entry, one in known.decisions.get(submission, ()) if entry.index < index]
    return bool(decisions) and decisions[-1].state != "rejected" and decisions[-1].canonical


def payments(known: "Known") -> dict[str, Payment]:
    """What all epochs pay, by the event of the ledger."""
    stated: list[facts.Epoch] = []
    due: dict[str, Payment] = {}
    for entry, epoch in known.history.of(facts.Epoch):
        stated.append(epoch)
        for name, entries in events(stated, makers(known, entry.index)).items():
            due.setdefault(name, Payment(entry.index, entries))
    return due


def epochs(known: "Known") -> Iterator[str]:
    """Epochs come one after the other, on the manifest's terms, and pay what follows from their values."""
    resolved = known.history.manifest.get("resolved")
    promised = terms(resolved if isinstance(resolved, dict) else {})
    for number, (entry, epoch) in enumerate(known.history.of(facts.Epoch)):
        where = f"entry {entry.index}: epoch {epoch.epoch}"
        if epoch.epoch != number:
            yield f"{where} is stated where epoch {number} was due"
        if (epoch.pool, epoch.seed) != promised:
            own = f"pool {epoch.pool} and seed {epoch.seed}"
            yield f"{where} has {own}, and the manifest {promised[0]} and {promised[1]}"
        yield from (f"{where} {problem}" for problem in _value_problems(known, entry.index, epoch))
    paid = {event.event: (entry, event) for entry, event in known.history.of(facts.Credit)}
    for name, due in known.payments.items():
        if name not in paid:
            yield f"entry {due.place}: {name} was stated and not paid"
            continue
        entry, event = paid[name]
        entries = tuple(ledger.Entry(*one) for one in event.entries)
        if entry.index < due.place or entries != due.entries:
            yield f"entry {entry.index}: {name} pays something else than follows from its values"


def _value_problems(known: "Known", index: int, epoch: facts.Epoch) -> Iterator[str]:
    made = {file.sha256 for file in lineage.beginning(known.history)}
    for entry, result in known.results.values():
        if entry.index < index and not isinstance(result.outputs, str):
            made |= {file.sha256 for file in result.outputs}
    if set(epoch.values) != set(epoch.networks):
        yield "does not say which networks it values"
    strange = sorted(stage for stage, sha256 in epoch.networks.items() if sha256 not in made)
    if strange:
        yield f"values {strange[0]}, whose weights nobody made"
    if any(error < 0 for _, error in epoch.values.values()):
        yield "has an error below zero"
