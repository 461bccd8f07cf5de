"""Which task a machine gets: one that it can do and may do, of a size that fits; or why there is none."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from atoll.net import leasing
from atoll.net.planning import Plan
from atoll.net.protocol import Capabilities, Refusal, Unit
from atoll.net.tables import Device, LeaseRow, TaskRow

LOOK = 256
"""Free tasks that are looked at, the oldest first: a request's cost does not grow with the queue."""


@dataclass(frozen=True)
class Choice:
    """A task for a machine."""

    row: TaskRow
    unit: Unit
    expected: float
    """Seconds that it will need."""


def choose(
    session: Session, device: Device, capabilities: Capabilities, plan: Plan, target: float
) -> Choice | Refusal:
    """The best of the free tasks for this device."""
    free = select(TaskRow).where(TaskRow.state.in_(leasing.FREE)).order_by(TaskRow.id).limit(LOOK)
    rows = list(session.scalars(free))
    if not rows:
        return _none(session)
    reasons: list[tuple[str, str]] = []
    fitting = []
    for row in rows:
        unit = Unit.model_validate(row.unit)
        reason = _unfit(row, unit, device, capabilities)
        if reason is None:
            fitting.append((row, unit))
        else:
            reasons.append(reason)
    holds = set(capabilities.holds)
    fitting.sort(key=lambda pair: _order(pair[1], capabilities, holds))
    for row, unit in fitting:
        if _may(session, row, device):
            speed = device.speed or capabilities.speed
            sized = _sized(plan, row, unit, speed, target)
            return Choice(row, sized, sized.work / speed if speed else 0.0)
    if fitting:
        sentence = "what is left needs machines of other accounts; there will be more"
        return Refusal(reason="waiting", sentence=sentence, retry_after_s=0)
    code, sentence = max(set(reasons), key=reasons.count)
    return Refusal(reason=code, sentence=sentence, retry_after_s=0)


def _none(session: Session) -> Refusal:
    held = session.scalar(select(func.count()).where(TaskRow.state.in_((*leasing.HELD, *leasing.JUDGED))))
    if held:
        sentence = f"{held} units are being worked on or checked, and what follows waits for them"
        return Refusal(reason="waiting", sentence=sentence, retry_after_s=0)
    return Refusal(reason="no-work", sentence="there is nothing to do at the moment", retry_after_s=0)


def _unfit(row: TaskRow, unit: Unit, device: Device, capabilities: Capabilities) -> tuple[str, str] | None:
    """Why a machine cannot do a unit, as a code and a sentence."""
    if unit.role not in capabilities.roles:
        return "role", f"there is work of the kind '{unit.role}', which your machine does not take"
    if capabilities.memory and unit.memory > capabilities.memory:
        needed = unit.memory / 2**30
        return "too-little-memory", f"what is free needs {needed:.1f} GiB of memory, more than you offer"
    if capabilities.disk and sum(file.size for file in unit.inputs) * 2 > capabilities.disk:
        return "too-little-memory", "what is free needs more disk than you offer"
    if device.id in row.failed:
        return "waiting", "what is free failed on your machine before; another one tries it"
    return None


def _order(unit: Unit, capabilities: Capabilities, holds: Collection[str]) -> tuple[bool, int]:
    """GPUs do first what they are good for, and everybody what it has the files of."""
    here = sum(file.size for file in unit.inputs if file.sha256 in holds)
    return unit.gpu != capabilities.gpu, -here


def _may(session: Session, row: TaskRow, device: Device) -> bool:
    """Copies that must agree are made by different accounts, and nobody audits himself."""
    siblings = select(TaskRow.id).where(TaskRow.key == row.key, TaskRow.id != row.id)
    taken = select(
        exists().where(
            LeaseRow.task.in_(siblings), LeaseRow.account == device.account, LeaseRow.state != "released"
        )
    )
    return not session.scalar(taken)


def _sized(plan: Plan, row: TaskRow, unit: Unit, speed: float, target: float) -> Unit:
    """As much of a training as the machine does in a lease; what somebody began stays as it is."""
    steps = unit.last - unit.first
    if row.fence or not speed or not steps or not unit.work:
        return unit
    return plan.shortened(unit, int(steps * target * speed / unit.work))
