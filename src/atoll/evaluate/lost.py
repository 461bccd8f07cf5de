"""What a Fréchet distance loses without each part, from samples that every part draws alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from atoll.credit import mixtures
from atoll.credit.estimate import Estimate, jackknife
from atoll.credit.mixtures import Moments
from atoll.evaluate import alone, evaluation, held_out, values
from atoll.evaluate.distances import Frechet
from atoll.evaluate.features import Space
from atoll.evaluate.measure import Judge
from atoll.flow import draws, solver
from atoll.runs import CREDIT, Run, read_stamped, stamped, write_json
from atoll.sampling.opening import open_run_model

FILE = "distance.json"
"""Beside the values of a run."""
GROUPS = 8
"""Parts of the samples, of which one at a time is left out to tell how sure a number is."""
MANY = 128
"""Features beyond which the intervals of values would take minutes: 2^K roots of matrices in each group."""
SENTENCE = (
    "A distance loses most by the part that lies farthest from the rest, however well it draws what is its "
    "own, and a part that comes as two is not worth what it was: not for payment, nor from samples that a "
    "part's owner hands in."
)


def measure(run: Run, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Every part draws alone; what that says of the ensemble without it. Writes `credit/distance.json`."""
    judge = Judge(run, run.config.evaluate)
    spaces = judge.spaces
    sampler = open_run_model(run, model="ensemble", experts=None)
    ensemble, num, seed = sampler.ensemble, run.config.credit.drawn, held_out.seed_of(run)
    there = [number for number in range(len(ensemble.experts)) if number not in ensemble.absent]
    rows: dict[str, list[Tensor]] = {space.name: [] for space in spaces}
    for done, number in enumerate(there):
        x_0 = alone.drawn(run, sampler, number, num, seed_of(run, number)).x_0
        for space in spaces:
            rows[space.name].append(space.of(x_0))
        if progress is not None:
            progress((done + 1) * num, len(there) * num)
    priors = ensemble.priors.cpu()[there]
    asked = sampler.request(num, strategy="oracle", cluster=[there[0]] * num)
    record = {
        "run": run.config.name,
        "epoch": run.config.credit.epoch,
        "seed": seed,
        "networks": evaluation.networks(run),
        "drawn": num,
        "steps": len(list(solver.asked(asked.settings.solver, asked.settings.steps, asked.settings.shift))),
        "solver": asked.settings.solver,
        "guidance": asked.settings.guidance,
        "numbers": there,
        "spaces": {
            space.name: told(run, space, torch.stack(rows[space.name]), priors, there) for space in spaces
        },
        "sentence": SENTENCE,
    }
    write_json((run.path / CREDIT).with_name(FILE), stamped(record))
    return record


def kept(run: Run) -> dict[str, Any] | None:
    """What was measured earlier, if it is of these networks."""
    path = (run.path / CREDIT).with_name(FILE)
    record = read_stamped(path) if path.is_file() else {}
    return dict(record) if record.get("networks") == evaluation.networks(run) else None


def seed_of(run: Run, number: int) -> int:
    """The seed of a part's draws: a function of the committed seed, the epoch and the part."""
    source = draws.generator(held_out.seed_of(run), f"credit/drawn/{number}", run.config.credit.epoch)
    return int(torch.randint(2**31, (1,), generator=source))


def told(run: Run, space: Space, rows: Tensor, priors: Tensor, numbers: list[int]) -> dict[str, Any]:
    """What is lost without each part and what each is worth, on one kind of features, with intervals.

    The distance of the empty coalition is that of the data's mean drawn always, which needs nobody.
    """
    to = Frechet(space.reference)
    nothing = to.of_moments(to.mean, torch.zeros_like(to.covariance))
    source = draws.generator(held_out.seed_of(run), "credit/orders", run.config.credit.epoch)

    def lost(some: Tensor) -> Tensor:
        parts = Moments.of(rows[:, some])
        whole = to.of_moments(*parts.mixed(priors / priors.sum()))
        each = mixtures.left_out(to.of_moments, parts, priors)
        return torch.cat([torch.tensor([whole], dtype=torch.float64), each])

    def worth(some: Tensor) -> Tensor:
        return mixtures.shapley(to.of_moments, Moments.of(rows[:, some]), priors, nothing, source)

    num = rows.shape[1]
    change = jackknife(num, lost, GROUPS)
    if len(to.mean) <= MANY:
        value = jackknife(num, worth, GROUPS)
    else:
        value = Estimate(worth(torch.arange(num)), torch.full((len(numbers),), torch.nan))
    return {
        "distance_name": space.distance_name,
        "distance": _facts(change, 0, num),
        "nothing": nothing,
        "parts": [
            {
                "part": values.part_name(run, number),
                "number": number,
                "share": float(priors[place] / priors.sum()),
                "lost": _facts(change, place + 1, num),
                "value": _facts(value, place, num),
            }
            for place, number in enumerate(numbers)
        ],
    }


def _facts(one: Estimate, place: int, num: int) -> dict[str, Any]:
    return values.facts(float(one.mean[place]), float(one.error[place]), num)


def table(record: Mapping[str, Any]) -> str:
    """The record for a person."""
    lines = []
    for space in record["spaces"].values():
        width = max(12, *(2 + len(part["part"]) for part in space["parts"]))
        lines.append(values.line(("part", "share", "lost", "± 95 %", "value", "± 95 %"), width))
        for part in space["parts"]:
            cells = (
                part["part"],
                f"{100 * part['share']:.1f} %",
                *_said(part["lost"]),
                *_said(part["value"]),
            )
            lines.append(values.line(cells, width))
        whole = " ± ".join(_said(space["distance"]))
        lines.append(
            f"{space['distance_name']}: {whole} with all parts, {space['nothing']:.4g} with none (the data's "
            "mean); lost: what it grows by without a part, others renormalised; values sum to the difference"
        )
    return "\n".join([*lines, record["sentence"]])


def _said(number: Mapping[str, Any]) -> tuple[str, str]:
    half = None if number["low"] is None else (number["high"] - number["low"]) / 2
    return f"{number['value']:.3g}", "–" if half is None else f"{half:.2g}"
