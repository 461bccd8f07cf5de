"""An interval of training taken again from a committed state, beside what was committed to."""

import contextlib
import hashlib
from pathlib import Path

import torch
from torch import Tensor

from atoll.errors import CorruptError
from atoll.models.checkpoint import read_tensors
from atoll.net.protocol import Unit
from atoll.net.verification import updates
from atoll.net.verification.asking import BEFORE, COMMITTED, REPLAYED, REPORT
from atoll.net.verification.comparison import Report
from atoll.runs import file_digest, write_json
from atoll.train import loop


def report(folder: Path, unit: Unit) -> Path:
    """Compare what an audit came to in a run's folder with what was committed to; the report's file.

    Called after the unit's steps were taken as those of any other unit, with copies of the states at its
    first and its last step.
    """
    before, replayed, committed = (folder / name for name in (BEFORE, REPLAYED, COMMITTED))
    missing = [path.name for path in (before, replayed, committed) if not path.is_file()]
    if missing:
        raise CorruptError(f"{unit.name} left no {missing[0]}; audit it again")
    comparison = updates.compare(read_tensors(before), read_tensors(committed), read_tensors(replayed))
    digests = {"replayed": file_digest(replayed), "committed": file_digest(committed)}
    same = digests["replayed"] == digests["committed"]
    result = Report(**digests, comparison=comparison.model_copy(update={"equal": same}))
    write_json(folder / REPORT, result.model_dump(mode="json"))
    return folder / REPORT


def taken(
    task: loop.Task, before: dict[str, Tensor], first: int, last: int, device: torch.device
) -> dict[str, Tensor]:
    """The state after steps `first` to `last` of a training, from the state before them, without a folder."""
    steps = loop.Steps(task, device)
    steps.state.restore(
        {name: value.clone() for name, value in before.items()}
    )  # moments are taken as they are
    steps.state.step = first
    with contextlib.closing(task.reader.batches(first)) as batches:
        while steps.state.step < last:
            batch = next(batches)
            if steps.state.step == first:
                steps.settle({}, batch)
            steps.take(batch)
    return {name: value.detach().clone() for name, value in steps.state.tensors()}


def state_hash(tensors: dict[str, Tensor]) -> str:
    """A hash of a state in memory: names, types, shapes and bits."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
