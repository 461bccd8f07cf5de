"""A segment on the scales: numbers of its update, and what it did to samples that nobody could train for.

`python -m atoll.net.verification.weigh UNIT.json RESOLVED FOLDER VALUE ANSWER`: in the folder lie what the
unit reads, the state that was handed in and samples of some clusters; the answer is a file of JSON. In a
process of its own, since the coordinator opens no tensors.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.data import holdout
from atoll.data.store import Batch, Reader
from atoll.errors import AtollError
from atoll.models.checkpoint import read_tensors
from atoll.net.protocol import Unit, parse
from atoll.net.publishing import located
from atoll.net.verification import gate, measured
from atoll.net.verification.asking import AFTER, state_name
from atoll.runs import DONE, Run, graph, write_json
from atoll.runs.graph import Node, resolve
from atoll.train import jobs, loop
from atoll.train.moving import to_device

ROWS, FEWEST = 64, 16
"""Samples of each cluster that are asked, and the least with which a gate says something."""
LOOK = 4096
"""Held-out samples of a cluster among which they are drawn."""
TOGETHER = 16
"""Samples that a network is asked at once."""
Tensors = Mapping[str, Tensor]


def weighed(unit: Unit, run: Run, value: bytes) -> dict[str, Any]:
    """Whether all is finite, how much moved and how far, a sketch of it, and the gate where there is one."""
    node = graph.node(run, unit.stage)
    training = node.training
    assert training is not None  # it is the unit of one
    built = jobs.untrained(run, node.index) if node.kind.name == "expert" else None
    before = _before(node, unit, None if built is None else built[0])
    after = read_tensors(run.path / AFTER)
    if before is None:
        return {"finite": measured.is_finite(after), "why": "it begins with the recipe's own first weights"}
    rates = training.lr * sum(loop.learning_rate(training, step) for step in range(unit.first, unit.last))
    facts = measured.facts(before, after, rates or 1.0)
    if built is None or not facts["finite"]:
        return facts
    return {**facts, "gate": _gate(run, node.index, *built, before, after, value)}


def _before(node: Node, unit: Unit, model: nn.Module | None) -> Tensors | None:
    """The state that a segment began with; at first that is the network as the recipe makes it."""
    path = node.stage.path / "state" / state_name(unit.first)
    if path.is_file():
        return read_tensors(path)
    if model is None or unit.first:
        return None
    return {
        f"{kind}/{name}": weight.detach().clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
        for kind in ("model", "ema")
    }


def _gate(
    run: Run, own: int, model: nn.Module, loss: loop.Loss, before: Tensors, after: Tensors, value: bytes
) -> dict[str, Any] | None:
    """What the segment did to its own cluster and to others; None where too few samples are here."""
    there = list(_samples(run, value))
    if own not in [cluster for cluster, *_ in there]:
        return None
    cluster = torch.cat([torch.full((len(batch.x_0),), index) for index, batch, _ in there])
    sides, span = [], run.expert_settings(own).time_span
    for state in (before, after):
        _take(model, state)
        sides.append(torch.cat([_losses(model, loss, batch, value, span) for _, batch, _ in there]))
    if not all(bool(side.isfinite().all()) for side in sides):
        doubts = {"worse": "its losses on held-out samples are not finite"}
        return {"own": own, "unseen": False, "changes": {}, "doubts": doubts}
    judged = gate.paired(sides[0], sides[1], cluster, own)
    changes = {
        str(index): {"better": one.mean, "error": one.error, "loss": one.loss, "rows": one.rows}
        for index, one in judged.changes.items()
    }
    unseen = all(is_unseen for *_, is_unseen in there)
    return {"own": own, "unseen": unseen, "changes": changes, "doubts": judged.doubts}


def _samples(run: Run, value: bytes) -> Iterator[tuple[int, Batch, bool]]:
    """Of each cluster that is here, samples that the beacon's value draws; whether nobody trains on them."""
    for index in range(run.config.partition.clusters):
        stage = run.cluster(index)
        if not (stage.path / DONE).is_file():
            continue
        batch = holdout.read([stage], LOOK)
        unseen = batch is not None and len(batch.x_0) >= FEWEST
        if not unseen or batch is None:
            reader = Reader([stage], min(ROWS, stage.contents.rows), int.from_bytes(value[:4], "big"))
            batch = next(reader.batches())
        if len(batch.x_0) >= FEWEST:
            rows = gate.secret_rows(value, len(batch.x_0), ROWS)
            yield index, to_device(batch, rows, torch.device("cpu")), unseen


@torch.no_grad()
def _take(model: nn.Module, state: Tensors) -> None:
    """Give a network the averaged weights of a state."""
    for name, weight in model.named_parameters():
        if f"ema/{name}" in state:
            weight.copy_(state[f"ema/{name}"])


def _losses(
    model: nn.Module, loss: loop.Loss, batch: Batch, value: bytes, span: tuple[float, float]
) -> Tensor:
    """Sample by sample, at times that are trained on; a part has noise of its own, before as after."""
    parts = []
    for number, start in enumerate(range(0, len(batch.x_0), TOGETHER)):
        rows = slice(start, start + TOGETHER)
        part = to_device(batch, rows, torch.device("cpu"))
        parts.append(gate.losses(model, loss, part, bytes([number]) + value, span=span))
    return torch.cat(parts)


def main(arguments: list[str]) -> int:
    """Weigh, and write the answer."""
    try:
        place, resolved, folder, value, answer = arguments
        unit = parse(Unit, Path(place).read_bytes())
        settings = resolve("atoll.launch.job:read_settings")(Path(resolved))
        run = Run(Path(folder), located(settings, Path(folder)))
        write_json(Path(answer), weighed(unit, run, bytes.fromhex(value)))
    except (AtollError, ValueError, OSError, KeyError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
