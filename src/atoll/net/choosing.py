"""Which task a machine gets: one that it can do and may do, of a size that fits; or why there is none.

The database does the looking: a request costs as much with a thousand tasks as with ten.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, String, and_, case, cast, exists, func, not_, or_, select
from sqlalchemy.orm import Session, aliased

from atoll.net import leasing
from atoll.net.planning import Plan
from atoll.net.protocol import Capabilities, ReasonCode, Refusal, Unit
from atoll.net.tables import Device, LeaseRow, SubmissionRow, TaskRow

LATE = "release"
"""How audits are called that nothing but the end of the run waits for."""
LOOK = 64
"""Tasks that fit, the oldest first, among which one is chosen whose files the machine has."""
AGAIN = 3600.0
"""Seconds after which a machine may try once more what failed on it, if nobody else has."""
ALONE = 60.0
"""The same where no other machine was heard of for half an hour."""
AWAKE = 1800.0
STAY = 24.0
"""Times that it takes to send a state for which a machine should have been there before it trains …"""
GRACE = 8.0
"""… but less and less of it while nobody takes the task, and after so many times of it nothing at all."""
LONG = 8.0
"""Times that it takes to send a state for which a training should at least last."""


@dataclass(frozen=True)
class Choice:
    """A task for a machine."""

    row: TaskRow
    unit: Unit
    expected: float
    """Seconds that it will need."""


@dataclass(frozen=True)
class Rule:
    """What a task must be for a machine to get it, and what is said where none is."""

    holds: ColumnElement[bool]
    code: ReasonCode
    sentence: str
    asked: Select[Any] | None = None
    """A number or words of the tasks before this rule, to be put into the sentence."""


def choose(
    session: Session,
    device: Device,
    capabilities: Capabilities,
    plan: Plan,
    target: float,
    now: float,
    may: Callable[[TaskRow], bool] = lambda row: True,
) -> Choice | Refusal:
    """The best of the free tasks for this device; `may` says who audits what."""
    free = TaskRow.state.in_(leasing.FREE)
    rules = _rules(device, capabilities, now - (ALONE if _is_alone(session, device, now) else AGAIN))
    fitting = _where(select(TaskRow), free, rules)
    first = fitting.order_by(_urgency(), TaskRow.gpu != capabilities.gpu, TaskRow.id).limit(LOOK)
    pairs = [(row, Unit.model_validate(row.unit)) for row in session.scalars(first)]
    if not pairs:
        return _why(session, free, rules)
    here = set(capabilities.holds)
    pairs.sort(key=lambda pair: (_rank(pair[0]), *_order(pair[1], capabilities, here)))
    pairs = [pair for pair in pairs if may(pair[0])]
    if not pairs:
        sentence = "what is left needs machines of other accounts; there will be more"
        return Refusal(reason="waiting", sentence=sentence, retry_after_s=0)
    pairs = [pair for pair in pairs if _is_comparable(session, *pair, capabilities, now)]
    if not pairs:
        sentence = (
            "results of what is left differ, and machines that compute as one of those did are asked first"
        )
        return Refusal(reason="numerics", sentence=sentence, retry_after_s=0)
    here_for, needed = now - device.since, None
    for row, unit in pairs:
        sending = _sending(plan, unit, capabilities)
        stays = here_for >= stay(sending, now - max(row.created, row.heard))
        if not stays and here_for >= AWAKE and needed is None:
            needed = _is_everybody_needed(session, now)
        if stays or needed:
            speed = device.speed or capabilities.speed
            sized = _sized(plan, row, unit, speed, max(target, LONG * sending))
            return Choice(row, sized, sized.work / speed if speed else 0.0)
    sentence = "what is free is for machines that have been here for longer; stay, or come back"
    return Refusal(reason="waiting", sentence=sentence, retry_after_s=0)


def _rules(device: Device, capabilities: Capabilities, before: float) -> list[Rule]:
    """What a task must be, one thing after the other; `before` then it may be tried again where it failed."""
    kinds = func.min(TaskRow.role)
    words = "there is work of the kind '{}', which your machine does not take"
    rules = [Rule(TaskRow.role.in_(capabilities.roles), "role", words, select(kinds))]
    if capabilities.memory:
        words = "what is free needs {:.1f} GiB of memory, more than you offer"
        least = select(func.min(TaskRow.memory) / 2.0**30)
        rules.append(Rule(TaskRow.memory <= capabilities.memory, "too-little-memory", words, least))
    if capabilities.disk:
        words = "what is free needs {:.2g} GB of disk, more than you offer"
        least = select(func.min(TaskRow.disk) * 2 / 1e9)
        rules.append(Rule(TaskRow.disk * 2 <= capabilities.disk, "too-little-disk", words, least))
    clean = cast(TaskRow.failed, String).not_like(f"%{device.id}%")
    words = "what is free failed on your machine before; another one tries it"
    rules.append(Rule(or_(clean, TaskRow.heard <= before), "waiting", words))
    words = "what is left needs machines of other accounts; there will be more"
    return [*rules, Rule(_others(device), "waiting", words)]


def _others(device: Device) -> ColumnElement[bool]:
    """Copies that must agree are made by different accounts.

    What counts is who holds a copy now, and who has handed one in. Whose lease was lost may make another one:
    else two accounts, of which one was away for a while, could wait for a third for ever.
    """
    sibling = aliased(TaskRow)
    holds = exists().where(LeaseRow.id == sibling.holder, LeaseRow.account == device.account)
    made = exists().where(SubmissionRow.id == sibling.candidate, SubmissionRow.account == device.account)
    same = (sibling.key == TaskRow.key, sibling.id != TaskRow.id)
    own = or_(and_(sibling.state.in_(leasing.HELD), holds), made)
    return not_(exists().where(*same, own).correlate(TaskRow))


def _is_alone(session: Session, device: Device, now: float) -> bool:
    """Whether no other machine was heard of lately."""
    others = select(Device.id).where(Device.id != device.id, Device.seen > now - AWAKE)
    return session.scalar(others.limit(1)) is None


def _is_everybody_needed(session: Session, now: float) -> bool:
    """Whether no more machines are there than free tasks: then nobody better can be waited for."""
    awake = session.scalar(select(func.count()).where(Device.seen > now - AWAKE)) or 0
    free = session.scalar(select(func.count()).where(TaskRow.state.in_(leasing.FREE))) or 0
    return awake <= free


def _is_comparable(
    session: Session, row: TaskRow, unit: Unit, capabilities: Capabilities, now: float
) -> bool:
    """Whether what a machine makes could agree with what others made of the same unit.

    Where copies differ, it may be by their arithmetic: then one more of somebody with the arithmetic of one
    of them says more than one of a third kind. After an hour anybody may make it.
    """
    if unit.quorum < 2 or row.copy < unit.quorum or now - row.created >= AGAIN:
        return True
    made = select(SubmissionRow.result).join(TaskRow, TaskRow.candidate == SubmissionRow.id)
    kinds = {_kind(result["numerics"]) for result in session.scalars(made.where(TaskRow.key == row.key))}
    return _kind(capabilities.numerics.model_dump()) in kinds


def _kind(numerics: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of a machine's arithmetic, what no manifest pins."""
    return tuple(numerics.get(name) for name in ("device", "torch", "capability"))


def _where(query: Select[Any], free: ColumnElement[bool], rules: Collection[Rule]) -> Select[Any]:
    return query.where(and_(free, *(rule.holds for rule in rules)))


def _why(session: Session, free: ColumnElement[bool], rules: list[Rule]) -> Refusal:
    """Why there is nothing: the first thing that no free task is."""
    for count, rule in enumerate(rules):
        if session.scalar(_where(select(TaskRow.id), free, rules[: count + 1]).limit(1)) is None:
            asked = None if rule.asked is None else session.scalar(_where(rule.asked, free, rules[:count]))
            if rule.asked is not None and asked is None:
                break  # there is nothing at all
            return Refusal(reason=rule.code, sentence=rule.sentence.format(asked), retry_after_s=0)
    return none_free(session)


def is_any_free(session: Session) -> bool:
    """Whether there is anything that somebody could begin."""
    return session.scalar(select(TaskRow.id).where(TaskRow.state.in_(leasing.FREE)).limit(1)) is not None


def none_free(session: Session) -> Refusal:
    """Why there is nothing to begin, for anybody."""
    held = session.scalar(select(func.count()).where(TaskRow.state.in_((*leasing.HELD, *leasing.JUDGED))))
    if held:
        sentence = f"{held} units are being worked on or checked, and what follows waits for them"
        return Refusal(reason="waiting", sentence=sentence, retry_after_s=0)
    return Refusal(reason="no-work", sentence="there is nothing to do at the moment", retry_after_s=0)


def _urgency() -> ColumnElement[int]:
    """Audits that others wait for come first; those that only the end waits for, last."""
    late = TaskRow.key.like(f"{LATE}%")
    return case((TaskRow.role != "audit", 1), (late, 2), else_=0)


def _rank(row: TaskRow) -> int:
    """The same of one task."""
    return 1 if row.role != "audit" else 2 if row.key.startswith(LATE) else 0


def _order(unit: Unit, capabilities: Capabilities, holds: Collection[str]) -> tuple[bool, int]:
    """GPUs do first what they are good for, and everybody what it has the files of."""
    here = sum(file.size for file in unit.inputs if file.sha256 in holds)
    return unit.gpu != capabilities.gpu, -here


def _sending(plan: Plan, unit: Unit, capabilities: Capabilities) -> float:
    """Seconds in which a machine sends the state of a training; 0 where nobody knows."""
    sizes = [file.size for file in unit.inputs if "/state/" in file.path]
    size = max(sizes, default=0) or plan.state(unit)  # a training that begins has none yet
    return size * 8 / (capabilities.up * 1e6) if capabilities.up and unit.every else 0.0


def stay(sending: float, waited: float) -> float:
    """Seconds for which a machine must have been here: the less, the longer a task has waited for one.

    Whoever has been here for hours mostly stays for hours; whoever has just come mostly goes soon, and takes
    with it what it could not send. Where sending takes no time, or nobody better comes, anybody may train.
    """
    return STAY * sending - waited * STAY / GRACE


def _sized(plan: Plan, row: TaskRow, unit: Unit, speed: float, target: float) -> Unit:
    """As much of a training as the machine does in a lease; what somebody began stays as it is."""
    steps = unit.last - unit.first
    if row.fence or not speed or not steps or not unit.work:
        return unit
    return plan.shortened(unit, int(steps * target * speed / unit.work))


def learn(device: Device, unit: Unit, row: TaskRow, lease: LeaseRow, now: float) -> None:
    """How fast a machine really is, of a training that it hands in: from lease to result, whatever it did.

    Steps that others had done before it are not its own. The newest result counts for a third, and for four
    times more or less than was thought at most: a machine may have been asleep.
    """
    others = [step for _, name, step in (row.micro or {}).get("shares", []) if name != lease.id]
    own = unit.last - max([unit.first, *others])
    seconds = now - lease.created
    if not unit.every or own <= 0 or seconds < 1.0 or not unit.work:
        return
    speed = unit.work * own / (unit.last - unit.first) / seconds
    before = device.speed or float((device.capabilities or {}).get("speed") or speed)
    device.speed = before + (min(4 * before, max(before / 4, speed)) - before) / 3
