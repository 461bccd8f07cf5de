"""Routing in closed form against the learnt router, by time and by what samples become.

    python -m benchmarks.studies.routers RUN… --held-out DATA [--most 2000] [--num 1000]

RUN are finished runs of one recipe with different seeds, DATA samples that none of them saw. Prototypes are
made of the runs' own clusters and calibrated as `atoll add` does it; both routers then judge the same unseen
samples with the same noises, and draw the same number of samples.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll.components import calibrating
from atoll.config import EvaluateConfig
from atoll.data.store import Batch
from atoll.evaluate.intervals import over_repetitions
from atoll.evaluate.measure import Judge
from atoll.flow import draws, path
from atoll.runs import Run
from atoll.runs.components import Members
from atoll.sampling import grown, routing
from atoll.sampling.opening import open_run_model
from atoll.sampling.sampler import Sampler
from benchmarks.studies.credit import unseen

PARTS = 10
"""Of the time."""
Ask = Callable[[Tensor, Tensor], Tensor]
BINS = 10
"""Of confidence, for calibration."""


def closed_form(run: Run, calibrated: bool = True) -> grown.Grown:
    """All parts routed by prototypes."""
    calibrating.own_rows(run)
    clusters = run.config.partition.clusters
    module = grown.between(run, Members(), learnt=False)
    if calibrated:
        module.calibrated(calibrating.inverse_temperatures(run, Members(), learnt=False))
    return grown.Grown(module, None, range(clusters), [])


def scores(logits: Tensor, truth: Tensor) -> dict[str, float]:
    """Accuracy, cross-entropy in nats, and how far confidence is from accuracy on the average (ECE)."""
    chances = logits.double().log_softmax(1)
    sure, said = chances.exp().max(1)
    right = (said == truth).double()
    place = (sure * BINS).long().clamp(max=BINS - 1)
    gaps = [
        float((right[place == one].mean() - sure[place == one].mean()).abs() * (place == one).double().mean())
        for one in range(BINS)
        if bool((place == one).any())
    ]
    return {
        "accuracy": float(right.mean()),
        "cross-entropy": float(-chances.gather(1, truth[:, None]).mean()),
        "calibration error": sum(gaps),
    }


@torch.inference_mode()
def by_time(ask: Ask, batch: Batch, parts: int, seed: int) -> list[dict[str, float]]:
    """The scores in each of equal parts of the time; the same noises whoever is asked."""
    rows = []
    for number in range(parts):
        source = draws.generator(seed, "studies/routers", number)
        t = (number + torch.rand(len(batch.x_0), generator=source)) / parts
        x_t = path.point(batch.x_0, torch.randn(batch.x_0.shape, generator=source), t)
        rows.append(scores(ask(x_t, t).float(), batch.cluster))
    return rows


def study(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """One seed."""
    sampler = open_run_model(run, precision="float32")
    learnt = sampler.ensemble.router
    assert learnt is not None
    batch = unseen(run, options.held_out, options.most)
    routers = {"learnt": learnt, "closed form": closed_form(run), "uncalibrated": closed_form(run, False)}
    judge = Judge(run, EvaluateConfig(features=tuple(options.features)))
    settings = {name: getattr(options, name) for name in ("steps", "solver", "guidance", "strategy")}
    return {
        "run": run.config.name,
        "by time": {name: by_time(router, batch, PARTS, run.config.seed) for name, router in routers.items()},
        f"distance, {options.strategy}": {
            name: _distance(sampler, router, judge, options.num, settings) for name, router in routers.items()
        },
    }


def _distance(
    sampler: Sampler, router: torch.nn.Module, judge: Judge, num: int, settings: dict[str, Any]
) -> float:
    """The Fréchet distance of samples that this router routes."""
    ensemble = replace(sampler.ensemble, router=router, band=routing.Band())
    x_0 = replace(sampler, ensemble=ensemble).sample(num, seed=1, batch=250, **settings)
    return float(next(iter(judge.judge(x_0)["features"].values()))["frechet"]["value"])


def together(studies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds with intervals."""
    key = next(key for key in studies[0] if key.startswith("distance"))
    return {
        name: {
            key: over_repetitions([one[key][name] for one in studies]).facts(),
            "by time": [
                {
                    what: sum(one["by time"][name][part][what] for one in studies) / len(studies)
                    for what in row
                }
                for part, row in enumerate(studies[0]["by time"][name])
            ],
        }
        for name in studies[0][key]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--held-out", required=True, help="samples that the runs have not seen")
    parser.add_argument("--most", type=int, default=2000)
    parser.add_argument("--num", type=int, default=1000, help="samples that each distance stands on")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--solver", default="dpm++")
    parser.add_argument("--guidance", type=float, default=1.0)
    parser.add_argument("--strategy", default="top-1", help="`full` shows a router as it is, all weights")
    parser.add_argument("--features", nargs="+", default=["classifier"])
    options = parser.parse_args()
    studies = [study(Run.open(path), options) for path in options.runs]
    print(json.dumps({"study": "routers", "together": together(studies), "seeds": studies}, indent=1))


if __name__ == "__main__":
    main()
