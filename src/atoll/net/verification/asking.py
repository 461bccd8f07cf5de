"""What an auditor is asked: the unit that replays one interval of another's training."""

from collections.abc import Mapping, Sequence

from atoll.errors import AtollError
from atoll.net.protocol import File, Unit

COMMITTED = "audit/committed.safetensors"
"""Where the state lies that the worker committed to, beside the run in which the auditor trains."""
BEFORE, REPLAYED = "audit/before.safetensors", "audit/replayed.safetensors"
"""Where the auditor keeps the state that the interval began with, and the one that it came to."""
AFTER = "audit/after.safetensors"
"""Where the state that was handed in lies when it is weighed."""
REPORT = "audit/report.json"
STATE = "/state/"


def state_name(step: int) -> str:
    """The name of a full state of training at rest."""
    return f"step-{step:08d}.safetensors"


def audit_unit(unit: Unit, interval: int, states: Mapping[int, Sequence[File]]) -> Unit:
    """The unit that replays an interval; all of the segment where the interval's states are not at hand.

    `states` are the files of full states of the submission by step: that at its last step, and whatever was
    uploaded on the way.
    """
    first = unit.first + interval * unit.every
    last = min(first + unit.every, unit.last)
    if (first not in states and first != unit.first) or last not in states:
        first, last = unit.first, unit.last
    committed = next((file for file in states.get(last, ()) if file.path.endswith(state_name(last))), None)
    if committed is None:
        raise AtollError(f"{unit.name} cannot be audited: its state at step {last} is not in the store")
    inputs = unit.inputs
    if first != unit.first:
        inputs = (*(file for file in inputs if not _is_position(file.path)), *states[first])
    share = (last - first) / max(1, unit.last - unit.first)
    return unit.model_copy(
        update={
            "name": f"audit {unit.stage} @ {first}..{last}",
            "role": "audit",
            "first": first,
            "last": last,
            "inputs": (*inputs, committed.model_copy(update={"path": COMMITTED})),
            "quorum": 1,
            "price": round(unit.price * share),
            "work": unit.work * share,
        }
    )


def _is_position(path: str) -> bool:
    """Whether a file says how far a training is; decisions that were made once stay as they are."""
    folder, _, name = path.rpartition("/")
    return f"/{folder}/".endswith(STATE) and (name.startswith("step-") or name.startswith("latest"))
