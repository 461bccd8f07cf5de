"""The rules that a run's history must obey, each a function from the history to what breaks it.

Pure: no network, no files. A coordinator that follows them could still refuse work or be slow; it could not
give credit for nothing, judge in its own favour, or change what was done, without a line here telling so.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from pydantic import ValidationError

from atoll.errors import AtollError, CorruptError
from atoll.net import epochs, facts, keys, ledger, lineage, protocol, statements
from atoll.net.history import Entry, History
from atoll.net.protocol import Delegation
from atoll.net.verification import beacon, drand
from atoll.net.verification.policy import fraction

Faults = Iterator[str]


class Known:
    """A history by what its statements are about."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def accounts(self) -> dict[str, list[tuple[Entry, facts.Account]]]:
        """Delegations of each device."""
        devices: dict[str, list[tuple[Entry, facts.Account]]] = defaultdict(list)
        for entry, account in self.history.of(facts.Account):
            devices[account.device].append((entry, account))
        return devices

    @cached_property
    def leases(self) -> dict[str, tuple[Entry, facts.Lease]]:
        """Leases by their id; the first, where two have the same."""
        return _first((lease.lease, (entry, lease)) for entry, lease in self.history.of(facts.Lease))

    @cached_property
    def results(self) -> dict[str, tuple[Entry, facts.Result]]:
        """Results by submission."""
        return _first((one.submission, (entry, one)) for entry, one in self.history.of(facts.Result))

    @cached_property
    def verdicts(self) -> dict[str, list[tuple[Entry, facts.Verdict]]]:
        """Verdicts of each submission."""
        verdicts: dict[str, list[tuple[Entry, facts.Verdict]]] = defaultdict(list)
        for entry, one in self.history.of(facts.Verdict):
            verdicts[one.submission].append((entry, one))
        return verdicts

    @cached_property
    def decisions(self) -> dict[str, list[tuple[Entry, facts.Decision]]]:
        """What became of each submission, in order."""
        decisions: dict[str, list[tuple[Entry, facts.Decision]]] = defaultdict(list)
        for entry, one in self.history.of(facts.Decision):
            decisions[one.submission].append((entry, one))
        return decisions

    @cached_property
    def payments(self) -> dict[str, "epochs.Payment"]:
        """What epochs that are stated pay, by the event of the ledger."""
        return epochs.payments(self)

    @property
    def is_policed(self) -> bool:
        """Whether the manifest promises audits."""
        policy = self.history.manifest.get("policy")
        return isinstance(policy, dict) and "audit" in policy

    def accepted(self, submission: str) -> bool:
        """Whether a submission stands accepted at the end."""
        states = [decision.state for _, decision in self.decisions.get(submission, ())]
        return bool(states) and states[-1] != "rejected"

    def standing(self) -> Iterator[tuple[Entry, facts.Result]]:
        """Results that the run goes on from."""
        for submission, (entry, result) in self.results.items():
            if self.accepted(submission) and self.decisions[submission][-1][1].canonical:
                yield entry, result


def accounts(known: Known) -> Faults:
    """A device acts for an account that has signed so."""
    for entry, account in known.history.of(facts.Account):
        where = f"entry {entry.index}: the delegation of device {account.device:.12}"
        try:
            delegation = Delegation.model_validate(account.delegation or {})
            keys.check_delegation(delegation, entry.at)
        except (ValidationError, AtollError):
            yield f"{where} is not signed by its account for that time"
            continue
        names = (keys.identity(delegation.account), delegation.expires)
        if names != (account.account, account.expires):
            yield f"{where} is of another account or time than it says"
        if account.device not in (delegation.device, keys.identity(delegation.device)):
            yield f"{where} is for another device"


def leases(known: Known) -> Faults:
    """Leases go to devices that an account stands for, and each of a unit has a higher fence."""
    fences: dict[str, int] = {}
    seen: set[str] = set()
    for entry, lease in known.history.of(facts.Lease):
        where = f"entry {entry.index}: lease {lease.lease:.12} of {lease.unit}"
        if lease.lease in seen:
            yield f"{where} has the name of an earlier lease"
        seen.add(lease.lease)
        unit = lease.definition
        copies = lease.copy_ is None and unit is not None and unit.quorum > 1  # nobody says which
        if lease.fence <= fences.get(lease.task, 0) and not copies:
            yield f"{where} has fence {lease.fence}, and {fences[lease.task]} was given before"
        fences[lease.task] = max(lease.fence, fences.get(lease.task, 0))
        if not any(
            account.account == lease.account and earlier.index < entry.index and entry.at < account.expires
            for earlier, account in known.accounts.get(lease.device, ())
        ):
            yield f"{where} went to a device for which its account does not stand at that time"
        if unit is not None and unit.run != known.history.run:
            yield f"{where} is of another run"
        if unit is not None and (unit.name, unit.price) != (lease.unit, lease.price):
            yield f"{where} has another name or price than its unit"


def results(known: Known) -> Faults:
    """A result belongs to a lease, of its unit, fence, account and device, and commits to every state."""
    seen: set[str] = set()
    for entry, result in known.history.of(facts.Result):
        where = f"entry {entry.index}: submission {result.submission:.12} of {result.unit}"
        if result.submission in seen:
            yield f"{where} is there twice"
        seen.add(result.submission)
        earlier, lease = known.leases.get(result.lease, (None, None))
        if earlier is None or lease is None or earlier.index > entry.index:
            yield f"{where} has no lease"
            continue
        unit = (result.digest, lease.digest) if result.digest and lease.digest else (result.unit, lease.unit)
        own = (result.fence, result.account, result.device)
        if unit[0] != unit[1] or own != (lease.fence, lease.account, lease.device):
            yield f"{where} has another unit, fence, account or device than its lease"
        yield from (f"{where} {problem}" for problem in _chain_problems(result, lease))
        if result.signed is not None and not _signed_by_device(result, known):
            yield f"{where} is not what its device signed"


def _chain_problems(result: facts.Result, lease: facts.Lease) -> Faults:
    unit = lease.definition
    if (
        unit is None
        or unit.role != "train"
        or isinstance(result.chain, str)
        or isinstance(result.outputs, str)
    ):
        return
    states = -(-(unit.last - unit.first) // unit.every) + 1
    if len(result.chain) != states:
        yield f"commits to {len(result.chain)} states, not {states}"
    elif result.chain and result.chain[-1] not in {file.sha256 for file in result.outputs}:
        yield "does not hand in the state that it committed to last"
    if result.chain and unit.first and result.chain[0] not in {file.sha256 for file in unit.inputs}:
        yield "does not begin with the state that was handed out"


def _signed_by_device(result: facts.Result, known: Known) -> bool:
    try:
        envelope = result.signed if isinstance(result.signed, bytes) else statements.compact(result.signed)
        statement = statements.opened(envelope)
    except (CorruptError, TypeError, ValueError):
        return False
    names = {*statement.signers, *map(keys.identity, statement.signers)}
    content = statement.facts
    if result.device not in names or (content.get("lease") or result.lease) != result.lease:
        return False
    if "result" in content:
        return bool(content["result"] == _digest(result))
    return list(content.get("chain") or []) == list(result.chain)


def _digest(result: facts.Result) -> str | None:
    """Of the result as its device handed it in; None where its lists are elsewhere."""
    try:
        tree = result.model_dump(mode="json", include={"outputs", "removed", "chain", "seconds", "steps"})
        return protocol.Result.model_validate(
            {**tree, "unit": result.digest, "numerics": result.numerics}
        ).digest
    except ValidationError:
        return None


def challenges(known: Known) -> Faults:
    """What decides who and what is audited came out after the commitment, and is the beacon's."""
    draws: dict[str, str] = {}
    for entry, draw in known.history.of(facts.Beacon):
        try:
            settings = _beacon(known.history, entry.index)
        except ValidationError:
            yield "the manifest names no beacon that can be read"
            return
        draws[draw.submission] = draw.value
        where = f"entry {entry.index}: round {draw.round} for submission {draw.submission:.12}"
        earlier, _ = known.results.get(draw.submission, (None, None))
        if earlier is None or earlier.index > entry.index:
            yield f"{where} came before there was a commitment"
            continue
        number = settings.round_after(earlier.at)
        try:
            beacon.check(settings, beacon.Draw(round=draw.round, value=draw.value, proof=draw.proof), number)
        except (AtollError, ValidationError, ValueError) as error:
            yield f"{where}: {_line(error)}"

    yield from _intervals(known, draws)


def unsigned_rounds(known: Known) -> Faults:
    """What of the beacon's rounds this machine cannot check."""
    with contextlib.suppress(ValidationError):  # `challenges` says so
        used = [_beacon(known.history, entry.index) for entry, _ in known.history.of(facts.Beacon)]
        if any(settings.url is not None and not (settings.key and drand.is_here()) for settings in used):
            yield "signatures of the beacon's network were not checked (pip install 'atoll[drand]')"


def _intervals(known: Known, draws: Mapping[str, str]) -> Faults:
    """The interval that is asked for is the one that the beacon's value says, but in a dispute."""
    for entry, asked in known.history.of(facts.Challenge):
        value, result = draws.get(asked.submission), known.results.get(asked.submission, (None, None))[1]
        if asked.interval is None or asked.narrowed or result is None or isinstance(result.chain, str):
            continue
        count = max(1, len(result.chain) - 1)
        if value is None:
            yield f"entry {entry.index}: {result.unit} is asked for an interval before the beacon spoke"
        elif int(fraction(bytes.fromhex(value), asked.submission, "interval") * count) != asked.interval:
            yield f"entry {entry.index}: {result.unit} is asked for another interval than the beacon drew"


def _beacon(history: History, index: int) -> beacon.BeaconSettings:
    policy = history.manifest.get("policy")
    tree = policy.get("beacon") if isinstance(policy, dict) else None
    for entry, fork in history.of(facts.Fork):
        tree = fork.beacon if fork.beacon is not None and entry.index < index else tree
    if tree is None:
        return beacon.BeaconSettings.model_validate_json(str(history.manifest.get("beacon") or "{}"))
    return beacon.BeaconSettings.model_validate_json(statements.compact(tree))


def verdicts(known: Known) -> Faults:
    """Nobody judges work of their own account, nor work that is not there."""
    for entry, verdict in known.history.of(facts.Verdict):
        where = f"entry {entry.index}: the {verdict.check} of submission {verdict.submission:.12}"
        earlier, result = known.results.get(verdict.submission, (None, None))
        if earlier is None or result is None or earlier.index > entry.index:
            yield f"{where} is of work that nobody handed in"
        elif verdict.by == result.account:
            yield f"{where} was made by the account that did the work"


def decisions(known: Known) -> Faults:
    """Work is accepted on a verdict and not against a hard one, once for each unit; rejected on one."""
    standing: dict[str, str] = {}
    for entry, decision in known.history.of(facts.Decision):
        where = f"entry {entry.index}: {decision.unit} {decision.state}"
        earlier, result = known.results.get(decision.submission, (None, None))
        if earlier is None or result is None or earlier.index > entry.index:
            yield f"{where} without work that was handed in"
            continue
        before = [one for place, one in known.verdicts[decision.submission] if place.index < entry.index]
        if decision.state == "rejected":
            if not decision.reason and not any(one.verdict == "fail" for one in before):
                yield f"{where} without a reason or a verdict against it"
            if standing.get(decision.unit) == decision.submission:
                del standing[decision.unit]
            continue
        if known.is_policed and not any(one.verdict == "pass" for one in before):
            yield f"{where} without a verdict for it"
        if any(one.verdict == "fail" and one.hard for one in before):
            yield f"{where} against a verdict that nobody overruled"
        if decision.canonical:
            other = standing.setdefault(decision.unit, decision.submission)
            if other != decision.submission:
                yield f"{where} twice: submission {other:.12} stands as well"
        yield from _quorum_problems(known, entry, result, where)


def _quorum_problems(known: Known, entry: Entry, result: facts.Result, where: str) -> Faults:
    unit = known.leases[result.lease][1].definition if result.lease in known.leases else None
    if unit is None or unit.quorum < 2:
        return
    accounts = {
        one.account
        for place, one in known.history.of(facts.Result)
        if one.unit == result.unit and place.index < entry.index
    }
    if len(accounts) < unit.quorum:
        yield f"{where} by {len(accounts)} accounts, and {unit.quorum} must agree"


def credit(known: Known) -> Faults:
    """Credit is given once, for accepted work, up to its price; sums are zero, and none is negative."""
    events: set[str] = set()
    sums: Counter[tuple[str, str, str]] = Counter()
    paid: Counter[str] = Counter()
    for entry, event in known.history.of(facts.Credit):
        where = f"entry {entry.index}: event '{event.event:.60}'"
        entries = [ledger.Entry(*one) for one in event.entries]
        problem = ledger.problem(entries)
        if problem is not None:
            yield f"{where}: {problem}"
            continue
        if event.event in events:
            yield f"{where} is there twice"
        events.add(event.event)
        for one in entries:
            sums[one.account, one.bucket, one.lineage] += one.amount
        negative = [key for key in sums if sums[key] < 0 and key[0] != ledger.TREASURY]
        for key in negative:
            yield f"{where} takes more from {key[1]} of {key[0]:.12} than is there"
            sums[key] = 0
        if event.event in known.payments:
            continue  # for what a part is worth: `epochs` holds it
        issued = -sum(one.amount for one in entries if one.account == ledger.TREASURY)
        correction = event.event.startswith("correction of ")
        if issued > 0 and not correction:
            yield from (f"{where} {problem}" for problem in _pay_problems(known, entry, event, issued, paid))
        elif issued < 0 and not correction and not _hard(known, entry, event):
            yield f"{where} takes credit away without a hard verdict"


def _pay_problems(known: Known, entry: Entry, event: facts.Credit, issued: int, paid: Counter[str]) -> Faults:
    earlier, result = known.results.get(event.submission or "", (None, None))
    if earlier is None or result is None:
        yield "pays for no work"
        return
    decisions = [one for place, one in known.decisions[result.submission] if place.index < entry.index]
    if not decisions or decisions[-1].state == "rejected":
        yield "pays for work that was not accepted"
    workers = {lease.account for _, lease in known.leases.values() if lease.unit == result.unit}
    if any(one[0] not in {ledger.TREASURY, *workers} for one in event.entries):
        yield "pays an account that had no lease of the work"
    paid[result.submission] += issued
    lease = known.leases[result.lease][1] if result.lease in known.leases else None
    if lease is not None and paid[result.submission] > lease.price:
        yield f"pays {paid[result.submission]} in all, and the lease's price is {lease.price}"


def _hard(known: Known, entry: Entry, event: facts.Credit) -> bool:
    """Whether somebody lost escrow for work of theirs that a hard verdict was against."""
    accounts = {one[0] for one in event.entries} - {ledger.TREASURY}
    return any(
        verdict.verdict == "fail" and verdict.hard and place.index < entry.index
        for place, verdict in known.verdicts.get(event.submission or "", ())
        if known.results[event.submission or ""][1].account in accounts
    )


def bans(known: Known) -> Faults:
    """An account is shut out on hard verdicts about its own work, and gets no lease after that."""
    since: dict[str, int] = {}
    for entry, ban in known.history.of(facts.Ban):
        since[ban.account] = entry.index
        against = [
            place.index
            for number, (_, result) in known.results.items()
            if result.account == ban.account
            for place, one in known.verdicts.get(number, ())
            if one.hard and one.verdict == "fail" and place.index < entry.index
        ]
        if not ban.verdicts or not set(ban.verdicts) <= set(against):
            yield f"entry {entry.index}: account {ban.account:.12} is shut out without a hard verdict"
    for entry, lease in known.history.of(facts.Lease):
        if entry.index > since.get(lease.account, entry.index):
            yield f"entry {entry.index}: lease {lease.lease:.12} went to an account that was shut out"


RULES: Mapping[str, Callable[[Known], Faults]] = {
    "accounts": accounts,
    "leases": leases,
    "results": results,
    "challenges": challenges,
    "verdicts": verdicts,
    "decisions": decisions,
    "credit": credit,
    "epochs": epochs.epochs,
    "bans": bans,
    "lineage": lineage.lineage,
}
"""By the name that a report gives them."""


def _first(pairs: Iterator[tuple[str, tuple[Entry, facts.Facts]]]) -> dict:  # type: ignore[type-arg]
    table: dict[str, tuple[Entry, facts.Facts]] = {}
    for name, pair in pairs:
        table.setdefault(name, pair)
    return table


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
