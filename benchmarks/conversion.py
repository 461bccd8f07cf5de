"""How wrong a noise expert's velocity is: the exact conversion against the published one, on known data.

A mixture of Gaussians in 8 dimensions, whose exact noise predictor on the cosine path is known; only the
conversion to the velocity of the linear path differs. Errors are relative root mean squares, in float32.
"""

import argparse
import json

import torch
from tests.analytic import ExactPredictor, mixture_of

from atoll.flow import objectives, path
from atoll.models.checkpoint import Objective
from atoll.models.expert import velocity

TIMES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95)


def errors(t: float) -> dict[str, float]:
    data, along = mixture_of(8, 6, 8), path.PATHS["cosine"]
    network = ExactPredictor(data, "cosine", "noise")
    x_0, _ = data.draw(2000)
    noise = torch.randn(2000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    times = torch.full((2000,), t)
    x_t = path.point(x_0, noise, times.double()).float()
    exact = data.velocity(x_t.double(), times.double())
    same_time, matched = network(x_t, times * along.last), network(x_t, along.match(times))
    found = {
        "exact": velocity(network, Objective(path="cosine", prediction="noise"), x_t, times),
        "published": objectives.published_velocity(along, same_time, x_t, times),
        "published, own derivatives": objectives.published_velocity(along, same_time, x_t, times, True),
        "matched but not rescaled": objectives.to_velocity("noise", along, matched, x_t, times),
    }
    size = exact.square().mean()
    return {how: ((v.double() - exact).square().mean() / size).sqrt().item() for how, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {t: errors(t) for t in TIMES}
    if options.json:
        worst = {how: max(row[how] for row in rows.values()) for how in rows[TIMES[0]]}
        ratios = {
            f"{how} conversion, in its largest error": worst[how] / worst["exact"]
            for how in worst
            if how != "exact"
        }
        print(
            json.dumps(
                {"benchmark": "conversion", "ratios": ratios, "detail": {str(t): rows[t] for t in rows}}
            )
        )
        return
    print(f"| t | {' | '.join(rows[TIMES[0]])} |\n|{'---|' * (len(rows[TIMES[0]]) + 1)}")
    for t, row in rows.items():
        print(
            f"| {t} | "
            + " | ".join(f"{value:.1e}" if value < 0.01 else f"{value:.2f}" for value in row.values())
            + " |"
        )


if __name__ == "__main__":
    main()
