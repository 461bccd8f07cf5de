"""Who made it and what it is worth: the parts of a finished run valued, and samples traced to them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import devices
from atoll.errors import ConfigError
from atoll.evaluate import evaluation, given, ground, held_out, neighbours, settlement, values, worth
from atoll.evaluate.held_out import Held
from atoll.models import checkpoint, costs
from atoll.runs import CREDIT, Run, Stage, digest, read_stamped, stamped, write_json
from atoll.runs.components import Members
from atoll.sampling import makers, writer
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.makers import Velocity
from atoll.sampling.opening import open_run_model

Report = Callable[[str, int, int], None]
"""Takes what is counted, how many are done, and of how many."""

EXACT = "float32"
"""Values are small differences of velocities: half precision would drown them."""


def value(run: Run, progress: Report | None = None) -> dict[str, Any]:
    """The parts of a run valued on held-out samples; writes `credit/credit.json`."""
    if run.members != Members():
        raise ConfigError("parts were added or dropped; only the experts that a recipe trains are valued")
    ensemble = _ensemble(run)
    held = held_out.samples(run)
    base = ground.ground(run, ensemble.device, held.batch.x_0)
    count = None if progress is None else partial(progress, "noisy samples")
    played = worth.play(run, ensemble, base, held.batch, count)
    seed = held_out.seed_of(run)
    record = {
        "run": run.config.name,
        "epoch": run.config.credit.epoch,
        "seed": seed,
        "commitment": held_out.commitment(seed),
        "held_out": _held(held, len(played.plan.points)),
        "rows": len(played.plan.t),
        "base": base.name,
        "networks": evaluation.networks(run),
        "cost": cost(run, ensemble, base.network),
        **values.record(run, played),
        "samples": own(run, progress),
    }
    write_json(run.path / CREDIT, stamped(record))
    return record


def _ensemble(run: Run) -> Ensemble:
    return open_run_model(run, precision=EXACT, model="ensemble", experts=None).ensemble


def _base(run: Run) -> Velocity | None:
    """What shares for display are measured against: what all experts began with, if they did."""
    return ground.beginning(run, devices.pick(None))


def _held(held: Held, used: int) -> dict[str, Any]:
    """Which samples values stand on: how many, and a digest of them all."""
    numbers = digest(held.batch.x_0.double().flatten(1).sum(1).tolist())
    return {"samples": len(held.batch.x_0), "used": used, "unseen": held.held_out, "digest": numbers}


def cost(run: Run, ensemble: Ensemble, base: bool) -> dict[str, float]:
    """What valuing costs, in FLOPs and as a share of the training of one expert, the dearest."""
    clusters, rows = run.config.partition.clusters, run.config.credit.num
    forward = [_forward(run.expert(index)) for index in range(clusters)]
    trained = [
        3 * flops * run.expert_settings(index).steps * run.expert_settings(index).batch
        for index, flops in enumerate(forward)
    ]
    router = _forward(run.router) if ensemble.router is not None else 0.0
    flops = rows * (sum(forward) + router + (forward[0] if base else 0.0))
    return {"flops": flops, "of_one_training": flops / max(trained)}


def _forward(stage: Stage) -> float:
    """FLOPs of one sample through a network."""
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    clusters = blueprint.clusters if blueprint.role == "router" else 0
    kind, shape = blueprint.condition, tuple(blueprint.shape)
    return costs.forward_flops(
        costs.Network(blueprint.network, shape, kind, blueprint.classes, blueprint.text, clusters=clusters)
    )


def trace(
    run: Run, x_0: Tensor, progress: Report | None = None, labels: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Of each sample: how likely it is under each part, whom the router would ask, its nearest by part.

    With `labels` experts are told the class of each.
    """
    config = run.config.credit
    made = makers.makers(
        _ensemble(run),
        x_0,
        levels=config.levels,
        batch=config.batch,
        seed=held_out.seed_of(run),
        condition=torch.tensor(labels) if labels else None,
        base=_base(run),
        progress=None if progress is None else partial(progress, "noise levels"),
    )
    near = neighbours.nearest(run, x_0, config.nearest)
    return [
        {
            **made.facts(row),
            "nearest": None if near is None else [[one.facts() for one in part] for part in near[row]],
            "sentence": makers.SENTENCE,
        }
        for row in range(len(x_0))
    ]


def own(run: Run, progress: Report | None = None) -> list[dict[str, Any]]:
    """The run's first samples traced, beside who made them; their likelihood is not told that."""
    folder, most = run.samples.path, run.config.credit.traced
    if not most or not (folder / writer.RECORD).is_file() or not (folder / writer.ARRAY).is_file():
        return []
    record = read_stamped(folder / writer.RECORD)
    stored = np.load(folder / writer.ARRAY, mmap_mode="r", allow_pickle=False)[:most]
    labels = [run.partition.contents.class_names.index(name) for name in record.get("class", [])[:most]]
    traced = trace(run, torch.from_numpy(stored.astype(np.float32)), progress, labels)
    kept = ("expert", "posterior", "bits_per_value_worse", "nearest")
    return [
        {
            "index": record["indices"][row],
            "made_by": record["experts"][row],
            "shares": record["shares"][row],
            **{key: one[key] for key in kept},
        }
        for row, one in enumerate(traced)
    ]


def trace_file(run: Run, path: Path, progress: Report | None = None) -> dict[str, Any]:
    """A picture or array from a file traced to parts, beside what it says of itself."""
    x_0 = given.read(run, path)
    traced = trace(run, x_0, progress)[0]
    price = settlement.royalties(run, traced["weights"], traced["display"])
    return {"file": path.name, "claims": given.claims(path), "royalties": price, **traced}


def table(traced: dict[str, Any]) -> str:
    """A traced sample for a person."""
    titles = ("part", "likelihood", "bits worse", "routed", "royalty")
    lines = ["".join(f"{title:>12}" for title in titles) + "  nearest training sample"]
    for k, probability in enumerate(traced["posterior"]):
        routed = sum(at[k] for at in traced["weights"]) / len(traced["weights"])
        bits = traced["bits_per_value_worse"][k]
        cells = (
            f"{100 * probability:.1f} %",
            "gone" if bits is None else f"{bits:.4f}",
            f"{100 * routed:.1f} %",
            f"{100 * traced['royalties'][k]:.1f} %" if traced["royalties"] else "–",
        )
        near = traced["nearest"][k] if traced["nearest"] else []
        name = f"{near[0]['id'][:12]} at {near[0]['distance']:.3f}" if near else ""
        lines.append(f"{values.PART.format(k):>12}" + "".join(f"{cell:>12}" for cell in cells) + f"  {name}")
    claims = ", ".join(f"{key} {text}" for key, text in traced["claims"].items())
    lines += [f"it says of itself: {claims}"] if claims else []
    return "\n".join([*lines, traced["sentence"]])
