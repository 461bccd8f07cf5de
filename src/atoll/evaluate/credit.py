"""Who made it and what it is worth: the parts of a finished run valued, and samples traced to them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import devices
from atoll.evaluate import (
    calibration,
    evaluation,
    given,
    ground,
    held_out,
    home,
    neighbours,
    settlement,
    values,
    worth,
)
from atoll.evaluate.held_out import Held
from atoll.models import checkpoint, costs
from atoll.runs import CREDIT, Run, Stage, digest, read_stamped, stamped, write_json
from atoll.sampling import makers, provenance, writer
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.makers import Velocity
from atoll.sampling.opening import open_run_model
from atoll.sampling.sampler import Sampler

Report = Callable[[str, int, int], None]
"""Takes what is counted, how many are done, and of how many."""

EXACT = "float32"
"""Values are small differences of velocities: half precision would drown them."""


def value(
    run: Run, progress: Report | None = None, brought: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The parts of a run valued on held-out samples; writes `credit/credit.json`.

    Of parts that were added the data are elsewhere: `brought` are sources of samples of theirs, by number.
    """
    ensemble, held = _ensemble(run), held_out.samples(run, brought)
    base = ground.ground(run, ensemble.device, held.batch.x_0)
    played = worth.play(run, ensemble, base, held.batch, _counted(progress))
    late = worth.play(run, ensemble, base, held.batch, rows=held_out.near_the_noise(run, len(held.batch.x_0)))
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
        "cost": cost(run, ensemble, base.network, played.owner, len(played.plan.t) + len(late.plan.t)),
        **values.record(run, played, late),
        "samples": own(run, progress),
    }
    write_json(run.path / CREDIT, stamped(record))
    return record


def audit(
    run: Run,
    progress: Report | None = None,
    brought: Mapping[int, str] | None = None,
    held: Held | None = None,
) -> dict[str, Any]:
    """What parts are paid for alone, within a budget of FLOPs; writes `credit/audit.json`.

    On what the run holds out, with what is `brought` of added parts, unless others are given (`held`).
    """
    ensemble, held = _ensemble(run), held or held_out.samples(run, brought)
    base = ground.ground(run, ensemble.device, held.batch.x_0, run.config.credit.audit_base)
    there = [number for number in range(len(ensemble.experts)) if number not in ensemble.absent]
    forward = [_forward(run.parts[number]) for number in there]
    whole, settings = training(run, forward, there), run.config.credit
    points = int(torch.bincount(held.batch.cluster_on_cpu).max())
    row = max(forward) * (1 + base.network)
    price = home.Price(row, points, held.batch.x_0[0].numel(), settings.budget * whole)
    played = home.Pass(run, ensemble, base, held.batch, price)
    paid = {one.number: one for one in played.asked(_counted(progress))}
    total, seed = sum(max(0.0, one.value) for one in paid.values()), held_out.seed_of(run)
    record = {
        "run": run.config.name,
        "epoch": settings.epoch,
        "seed": seed,
        "commitment": held_out.commitment(seed),
        "held_out": _held(held, len(held.batch.x_0)),
        "rows": sum(one.rows for one in paid.values()),
        "base": base.name,
        "networks": evaluation.networks(run),
        "cost": {"flops": played.flops, "of_one_training": played.flops / whole},
        "precision": settings.precision,
        "parts": [values.paid(run, number, paid.get(number), total) for number in there],
    }
    write_json((run.path / CREDIT).with_name("audit.json"), stamped(record))
    return record


def _counted(progress: Report | None) -> Callable[[int, int], None] | None:
    return None if progress is None else partial(progress, "noisy samples")


def _opened(run: Run) -> Sampler:
    return open_run_model(run, precision=EXACT, model="ensemble", experts=None)


def _ensemble(run: Run) -> Ensemble:
    """Experts as they were trained: what they are worth is told by losses, which are least there."""
    return open_run_model(run, precision=EXACT, model="ensemble", experts=None, extrapolate=1.0).ensemble


def _base(run: Run) -> Velocity | None:
    """What shares for display are measured against: what all experts began with, if they did."""
    return ground.beginning(run, devices.pick(None))


def _held(held: Held, used: int) -> dict[str, Any]:
    """Which samples values stand on: how many, and a digest of them all."""
    numbers = digest(held.batch.x_0.double().flatten(1).sum(1).tolist())
    return {"samples": len(held.batch.x_0), "used": used, "unseen": held.held_out, "digest": numbers}


def cost(run: Run, ensemble: Ensemble, base: bool, numbers: Sequence[int], rows: int) -> dict[str, float]:
    """What these parts at so many rows cost, in FLOPs and as a share of the dearest training of one."""
    parts = run.parts
    forward = [_forward(parts[number]) for number in numbers]
    router = _forward(run.router) if ensemble.router is not None and run.router.done else 0.0
    flops = rows * (sum(forward) + router + (forward[0] if base else 0.0))
    return {"flops": flops, "of_one_training": flops / training(run, forward, numbers)}


def training(run: Run, forward: Sequence[float], numbers: Sequence[int]) -> float:
    """FLOPs of the dearest training among these parts, whose forward passes cost so much.

    Of an added part nobody knows the steps: it counts as if it had been trained as the first expert was.
    """
    clusters = run.config.partition.clusters
    settings = [run.expert_settings(number if number < clusters else 0) for number in numbers]
    return max(3 * flops * one.steps * one.batch for flops, one in zip(forward, settings, strict=True))


def _forward(stage: Stage) -> float:
    """FLOPs of one sample through a network."""
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    clusters = blueprint.clusters if blueprint.role == "router" else 0
    kind, shape = blueprint.condition, tuple(blueprint.shape)
    network = costs.Network(
        blueprint.network,
        shape,
        kind,
        blueprint.classes,
        blueprint.text,
        clusters=clusters,
        prototypes=blueprint.prototypes,
    )
    return costs.forward_flops(network)


def trace(
    run: Run, x_0: Tensor, progress: Report | None = None, labels: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Of each sample: how likely it is under each part, whom the router would ask, its nearest by part.

    With `labels` experts are told the class of each.
    """
    config, sampler = run.config.credit, _opened(run)
    known = None if progress is None else partial(progress, "parts whose likelihoods are made fair")
    made = makers.makers(
        sampler.ensemble,
        x_0,
        levels=config.levels,
        batch=config.batch,
        seed=held_out.seed_of(run),
        condition=torch.tensor(labels) if labels else None,
        base=_base(run),
        calibration=calibration.fair(run, sampler, bool(labels), known),
        progress=None if progress is None else partial(progress, "noise levels"),
    )
    near = neighbours.lying(run, x_0, config.nearest)
    names = [values.part_name(run, k) for k in range(made.posterior.shape[1])]
    return [
        {
            "parts": names,
            **made.facts(row),
            "nearest": None if near is None else [[one.facts() for one in part] for part in near[row][0]],
            "near": None if near is None else near[row][1],
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
    ways = provenance.moved(folder)
    kept = ("expert", "calibrated", "posterior", "bits_per_value_worse", "nearest")
    return [
        {
            "index": record["indices"][row],
            "made_by": record["experts"][row],
            "shares": record["shares"][row],
            "moved": ways.get(record["indices"][row]),
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
    width = max(12, *(2 + len(name) for name in traced["parts"]))
    titles = ("part", "likelihood", "bits worse", "routed", "near", "royalty")
    lines = [values.line(titles, width) + "  nearest training sample"]
    for k, probability in enumerate(traced["posterior"]):
        routed = sum(at[k] for at in traced["weights"]) / len(traced["weights"])
        bits = traced["bits_per_value_worse"][k]
        cells = (
            traced["parts"][k],
            f"{100 * probability:.1f} %",
            "gone" if bits is None else f"{bits:.4f}",
            f"{100 * routed:.1f} %",
            f"{100 * traced['near'][k]:.0f} %" if traced["near"] else "–",
            f"{100 * traced['royalties'][k]:.1f} %" if traced["royalties"] else "–",
        )
        near = traced["nearest"][k] if traced["nearest"] else []
        name = f"{near[0]['id'][:12]} at {near[0]['distance']:.3f}" if near else ""
        lines.append(values.line(cells, width) + f"  {name}")
    claims = ", ".join(f"{key} {text}" for key, text in traced["claims"].items())
    lines += [f"it says of itself: {claims}"] if claims else []
    return "\n".join([*lines, traced["sentence"]])
