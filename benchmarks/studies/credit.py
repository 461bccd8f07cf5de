"""Do values say what a part is worth? Each expert really left out, against what `atoll credit` says.

    python -m benchmarks.studies.credit RUN… --held-out DATA [--num 64] [--truth 500] [--known 25]

RUN are finished runs of one recipe with different seeds, or files that this printed of some; DATA are samples
that none of them saw, as data.source names them. Truth: the ensemble really sampled, with all and without
each part (`benchmarks.studies.sampled`). What is dear is kept beside each run, `credit/study-*.safetensors`.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll.config import DataConfig
from atoll.credit import defence, likelihood, shapley
from atoll.credit.estimate import estimate
from atoll.credit.shapley import Game
from atoll.credit.target import expected_velocity
from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.data.store import Batch
from atoll.data.values import standardise
from atoll.evaluate import alone, calibration, ground, held_out, lost, neighbours, occupancy, worth
from atoll.evaluate.intervals import over_repetitions
from atoll.evaluate.routing import correlation
from atoll.evaluate.worth import Played
from atoll.flow import path
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.models.conditions import Condition
from atoll.runs import Run, replacing
from atoll.sampling import building, makers
from atoll.sampling.opening import open_run_model
from atoll.sampling.sampler import Sampler
from benchmarks.studies import attackers, sampled

SPACES = sampled.SPACES
REAL = 2000
"""Unseen pictures whose nearest training sample is looked at."""
AT_NOISE, NOISE = 128, 0.9
"""Samples of each cluster, and how much noise, for values near the noise."""
HOW = ("steps", "solver", "guidance")
"""Options of how samples are drawn."""
Tensors = dict[str, Tensor]


def kept(run: Run, name: str, make: Callable[[], Tensors]) -> Tensors:
    """Tensors of a run from a file, made when they are first asked for."""
    path = run.path / "credit" / f"study-{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    if not path.is_file():
        tensors = {key: value.contiguous() for key, value in make().items()}
        with replacing(path) as beside:
            write_tensors(beside, tensors)
    return read_tensors(path)


def unseen(run: Run, source: str, most: int) -> Batch:
    """Samples that the run has not, with their labels and the clusters that they would belong to."""
    opened = open_source(DataConfig(source=source))
    contents = run.partition.contents
    seen = _ids(run)
    items = (item for piece in range(opened.pieces) for item in opened.read(piece))
    samples = [item for item in itertools.islice(items, most) if isinstance(item, Sample)]
    new = [item for item in samples if item.id not in seen]
    stored = torch.stack([torch.from_numpy(item.values) for item in new])
    x_0 = standardise(stored, contents)
    cluster = occupancy.clusters_of(run, x_0, contents)
    assert cluster is not None, "the runs must be clustered by features"
    labels = torch.tensor([_number(contents.class_names, item.label) for item in new])
    return Batch(x_0, labels, cluster)


def _number(names: Sequence[str], label: str | None) -> int:
    """A class by name or, in files that have no names, by number."""
    return -1 if label is None else names.index(label) if label in names else int(label)


def _ids(run: Run) -> set[bytes]:
    from atoll.data.parts import Parts

    parts = Parts(run.data)
    return {bytes(raw) for name in parts.names for raw in parts.ids(name)}


def drawn(run: Run, sampler: Sampler, num: int, **settings: Any) -> Tensors:
    """As many samples of every expert alone, (experts, num, channels, *grid), as `--by distance` does."""
    each = [
        alone.drawn(run, sampler, k, num, lost.seed_of(run, k), batch=64, **settings).x_0
        for k in range(len(sampler.ensemble.experts))
    ]
    return {"x_0": torch.stack(each).half()}


def candidates(played: Mapping[str, Played], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Everything that might say what an expert is worth, one number each."""
    start, plain = played["start"].game, played["gaussian"].game
    return {
        "Shapley, base: start": shapley.shapley(start).mean(0),
        "Shapley, base: two moments": shapley.shapley(plain).mean(0),
        "Shapley without base (2^K)": enumerated(plain),
        "Shapley, likelihood weights, two moments": _in_nats(played["gaussian"], shapley.shapley(plain)),
        "leave one out, start instead": shapley.leave_one_out(start).mean(0),
        "leave one out, two moments instead": shapley.leave_one_out(plain).mean(0),
        "left out, others renormalised": shapley.left_out(start).mean(0),
        "at home, base: start": paid_rows(played["start"]).mean(0),
        "at home, base: two moments": paid_rows(played["gaussian"]).mean(0),
        "distance from two moments near the noise": _isolation(played["gaussian"], sizes),
        "routing share": start.weights.mean(0),
        "number of samples": torch.tensor(sizes).double(),
    }


def paid_rows(played: Played) -> Tensor:
    """What parts are paid for: samples of their own clusters, whose cluster is known."""
    owner = torch.arange(played.game.weights.shape[1])
    return shapley.shapley(defence.at_home(played.game, played.cluster, owner))


@torch.inference_mode()
def near_the_noise(run: Run, sampler: Sampler, batch: Batch) -> Tensors:
    """Values at home at one time at which little but the place of a cluster is known, against both bases.

    λ_k E[‖v_b - v*‖² - ‖v_k - v*‖²] with the mean of v* given x_t and cluster; base and one part are asked.
    """
    start = building.lone(run.start, torch.device("cpu")).experts[0]
    bases = {"start": start, "two moments": ground.gaussian(batch.x_0).velocity}
    answer = {name: torch.zeros(len(sampler.ensemble.experts)) for name in bases}
    source = torch.Generator().manual_seed(0)
    for k, share in enumerate(run.partition.contents.priors):
        points = batch.x_0[batch.cluster == k]
        noise = torch.randn(points[:AT_NOISE].shape, generator=source)
        t = torch.full((len(noise),), NOISE)
        x_t = path.point(points[:AT_NOISE], noise, t)
        target = expected_velocity(x_t, t, points, torch.ones(len(x_t), len(points), dtype=torch.bool))
        own = (sampler.ensemble.experts[k](x_t, t, None) - target).square().mean()
        for name, base in bases.items():
            answer[name][k] = share * ((base(x_t, t, None) - target).square().mean() - own)
    return answer


def replaced(run: Run, sampler: Sampler, batch: Batch) -> Tensors:
    """What is lost near the noise where the others answer instead, as `atoll credit` tells it."""
    rows = held_out.near_the_noise(run, len(batch.x_0))
    late = worth.play(run, sampler.ensemble, ground.gaussian(batch.x_0), batch, rows=rows)
    priors = torch.tensor(run.partition.contents.priors)
    there = torch.bincount(late.cluster, minlength=len(priors)) / len(late.cluster)
    rows = shapley.replaced(late.game, late.cluster, late.owner, priors)
    return {"values": (rows * priors / there).mean(0)}


def _isolation(played: Played, sizes: Sequence[int]) -> Tensor:
    """λ_i ‖d_i‖² in the last stratum: how far a cluster lies from the middle of the data, by its share of it.

    No value: an expert that says anything far away has it as well.
    """
    late = played.plan.stratum == played.plan.stratum.max()
    return torch.tensor(sizes).double() * played.game.pairs.diagonal(dim1=1, dim2=2)[late].mean(0)


def _in_nats(played: Played, rows: Tensor) -> Tensor:
    """Values by the weight (1-t)/t of the likelihood instead of the training's density of times."""
    t = played.plan.t.double().clamp(1e-4, 1 - 1e-4)
    density = torch.exp(-torch.logit(t).square() / 2) / (t * (1 - t))  # of logit-normal times
    weight = (1 - t) / t / density
    return (weight[:, None] * rows).mean(0)


def enumerated(game: Game) -> Tensor:
    """Shapley's value of the game without a base, in which a coalition shares all weight (w_i / Σ_S w_j)."""
    experts = game.weights.shape[1]
    worth_of = {(): -float(game.base.mean())}
    for size in range(1, experts + 1):
        for coalition in itertools.combinations(range(experts), size):
            mask = torch.zeros(experts, dtype=torch.float64)
            mask[list(coalition)] = 1
            weights = game.weights * mask + 1e-12 * mask
            weights = weights / weights.sum(1, keepdim=True)
            worth_of[coalition] = -float(shapley.losses(game.weighed(weights)).mean())
    values = torch.zeros(experts, dtype=torch.float64)
    for coalition, worth_ in worth_of.items():
        for i in set(range(experts)) - set(coalition):
            more = tuple(sorted((*coalition, i)))
            factor = math.factorial(len(coalition)) * math.factorial(experts - len(coalition) - 1)
            values[i] += factor / math.factorial(experts) * (worth_of[more] - worth_)
    return values


def as_files_hold(x_0: Tensor) -> Tensor:
    """Pictures of eight bits: what is left of a sample in a file."""
    return (x_0.clamp(-1, 1) * 127.5 + 127.5).round() / 127.5 - 1


def attribution(run: Run, sampler: Sampler, x_0: Tensor, known: int, batch: Batch) -> dict[str, float]:
    """How often the maker of a sample is named, who is known, and its nearest sample is of its cluster.

    Fairly, by a calibration that never saw a drawn sample, and as experts say it. Unseen real pictures say
    how often the nearest could be right: next to a border it may lie beyond it.
    """
    experts = len(x_0)
    some = as_files_hold(x_0[:, :known].float().flatten(0, 1))
    truth = torch.arange(experts).repeat_interleave(known)

    def traced() -> Tensors:
        made = makers.makers(sampler.ensemble, some, levels=32, batch=256, seed=held_out.seed_of(run))
        assert made.nll is not None
        return {"nll": made.nll, "weights": made.weights, "t": made.t}

    made, fair = kept(run, f"makers-{known}", traced), calibration.fair(run, sampler)
    assert fair is not None
    priors = run.partition.contents.priors
    posterior = likelihood.posterior(fair.applied(made["nll"]), priors, fair.temperature)
    plain = likelihood.posterior(made["nll"], priors)
    closest, most, real, _ = (
        cluster for rows in (x_0.float().flatten(0, 1), batch.x_0[:REAL]) for cluster in _closest(run, rows)
    )
    every = torch.arange(experts).repeat_interleave(x_0.shape[1])
    last = made["weights"][made["t"].argmin()]
    return {
        "maker by likelihood": float((posterior.argmax(1) == truth).double().mean()),
        "worst expert": float((posterior.argmax(1) == truth).double().view(experts, -1).mean(1).min()),
        "how sure it was": float(posterior.max(1).values.mean()),
        "maker by likelihood as experts say it": float((plain.argmax(1) == truth).double().mean()),
        "maker by the router near the data": float((last.argmax(1) == truth).double().mean()),
        "nearest sample of the maker's cluster": float((closest == every).double().mean()),
        "most of the 15 nearest": float((most == every).double().mean()),
        "the same of unseen pictures": float((real == batch.cluster[:REAL]).double().mean()),
        "samples": len(some),
    }


def _closest(run: Run, x_0: Tensor) -> tuple[Tensor, Tensor]:
    """The cluster of the nearest training sample of each, and that of most of the nearest 15."""
    near = neighbours.nearest(run, x_0, neighbours.VOTERS)
    assert near is not None
    first = [min(range(len(row)), key=lambda k: row[k][0].distance) for row in near]
    votes = torch.tensor([neighbours.shares(row) for row in near])
    return torch.tensor(first), votes.argmax(1)


def attacks(played: Played) -> dict[str, dict[str, float]]:
    """The worst over all attackers: what each attack pays beyond honesty, and what it costs an honest part.

    Shares of a pool; `with` and `without` the defence.
    """
    experts = played.game.weights.shape[1]
    rows: dict[str, dict[str, float]] = {}
    for name, attack in attackers.ATTACKS.items():
        worst: dict[str, float] = {}
        for who in range(experts):
            for key, pay in (("without", _naive), ("with", _guarded)):
                usual, shares = (
                    pay(one(played.game, who, (who + 1) % experts), played)
                    for one in (attackers.honest, attack)
                )
                gained = attackers.revenue(shares, who, experts) / float(usual[who]) - 1
                lost = max(1 - float(shares[j] / usual[j]) for j in range(experts) if j != who)
                for column, number in ((key, gained), (f"honest lose {key}", lost)):
                    worst[column] = max(worst.get(column, -math.inf), number)
        rows[name] = worst
    return rows


def _naive(attack: attackers.Attack, played: Played) -> Tensor:
    return attackers.pay(attack.game)


def _guarded(attack: attackers.Attack, played: Played) -> Tensor:
    return attackers.pay(attackers.defended(attack, played.game.weights, played.cluster, played.plan.stratum))


def precision(played: Played, experts: int) -> dict[str, float]:
    """Rows that would bring the median part's standard error to 3 % of its value, and what they cost.

    At home a row asks the base and one part, of values all parts. Times are stratified.
    """
    rows = shapley.shapley(played.game)
    relative = rows.std(0) / rows.mean(0).abs()
    needed = float((relative / 0.03).square().median())
    paid = [_needed_at_home(played, k) for k in range(experts)]
    return {
        "rows to 3 %": needed,
        "rows to 3 % at home, all parts": sum(paid),
        "samples of training of which that is 2 %": sum(paid) * 2 / 3 / 0.02,
        "rows to 3 % of the gain": float(
            (shapley.gain(played.game).std() / shapley.gain(played.game).mean() / 0.03) ** 2
        ),
        "samples of training of which this is 2 %": needed * (experts + 1) / 3 / 0.02,
    }


def _needed_at_home(played: Played, k: int) -> float:
    """Rows of its own cluster that one part needs."""
    home = played.cluster == k
    one = estimate(paid_rows(played)[home, k], played.plan.stratum[home])
    return float((one.error / one.mean.abs() / 0.03) ** 2) * int(home.sum())


def study(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """One seed."""
    sampler = open_run_model(run, precision="float32")
    batch = unseen(run, options.held_out, options.most)
    how = {name: value for name in HOW if (value := getattr(options, name)) is not None}
    x_0 = kept(run, f"drawn-{options.num}", lambda: drawn(run, sampler, options.num, **how))["x_0"]
    real, who = sampled.ensembles(run, sampler, options.truth, kept, how)
    spaces = kept(
        run,
        f"features-{options.num}-{options.truth}",
        lambda: sampled.features(run, {"alone": x_0, "real": real}, batch.x_0),
    )
    valued = run.changed([f"credit.num={options.rows}"])
    played = played_against(valued, sampler, batch)
    priors = torch.tensor(run.partition.contents.priors).double()
    truth = {
        name: sampled.truth(spaces[f"{name} real"], who, priors, spaces[f"{name} unseen"]) for name in SPACES
    }
    worths = candidates(played, run.partition.contents.sizes)
    late = kept(run, "near-the-noise", lambda: near_the_noise(run, sampler, batch))
    worths |= {f"at home at t = {NOISE}, base: {name}": values for name, values in late.items()}
    worths["replaced"] = kept(run, "replaced", lambda: replaced(valued, sampler, batch))["values"]
    for name in SPACES:
        make = partial(sampled.foretold, spaces[f"{name} alone"], spaces[f"{name} unseen"], priors)
        alone = kept(run, f"foretold-{name}-{options.num}", make)
        worths |= {f"{what}, {name}": values for what, values in alone.items()}
    return {
        "run": run.config.name,
        "unseen": len(batch.x_0),
        "distance": {name: one.whole for name, one in truth.items()},
        "lost": {name: one.lost.tolist() for name, one in truth.items()},
        "error of lost": {name: one.sure.error.tolist() for name, one in truth.items()},
        "reliability of the truth": {
            name: sampled.reliability(spaces[f"{name} real"], who, priors, spaces[f"{name} unseen"])
            for name in SPACES
        },
        "one truth against the other": correlation(*(truth[name].lost.tolist() for name in SPACES)),
        "worth": {name: values.tolist() for name, values in worths.items()},
        "rank correlation": {
            space: {
                name: correlation(values.tolist(), truth[space].lost.tolist())
                for name, values in worths.items()
            }
            for space in SPACES
        },
        "interval by errors of the truth": {
            space: {name: sampled.interval(truth[space].sure, values) for name, values in worths.items()}
            for space in SPACES
        },
        "attribution": attribution(run, sampler, x_0, options.known, batch),
        "attacks": attacks(played["start"]),
        "attacks, base: two moments": attacks(played["gaussian"]),
        "precision": precision(played["start"], len(priors)),
        "precision, base: two moments": precision(played["gaussian"], len(priors)),
    }


class _Beside(torch.nn.Module):
    """A router that knows of one part more, which it never asks."""

    def __init__(self, router: torch.nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition = None) -> Tensor:
        logits = self.router(x_t, t, condition).float()
        return torch.cat([logits, torch.full_like(logits[:, :1], -torch.inf)], 1)


def played_against(run: Run, sampler: Sampler, batch: Batch) -> dict[str, Played]:
    """The same velocities against two bases: two moments of the data, and the start.

    The start is asked as one part more, without weight, so that every expert is asked once.
    """
    ensemble = sampler.ensemble
    assert ensemble.router is not None
    parts = [ensemble.experts[k] for k in range(len(ensemble.experts))]
    parts.append(building.lone(run.start, ensemble.device).experts[0])
    beside = replace(ensemble, experts=parts, router=_Beside(ensemble.router))

    def play() -> Tensors:
        game = worth.play(run, beside, ground.gaussian(batch.x_0), batch).game
        return {"weights": game.weights, "along": game.along, "pairs": game.pairs, "base": game.base}

    game = Game(**kept(run, f"game-{run.config.credit.num}", play))
    plan = held_out.plan(run, len(batch.x_0))
    cluster = batch.cluster[plan.sample]
    games = {"gaussian": _without_last(game), "start": _without_last(rebased(game, len(parts) - 1))}
    return {name: Played(each, plan, cluster, None) for name, each in games.items()}


def rebased(game: Game, which: int) -> Game:
    """The game whose base is one of the parts: d'_i = d_i - d_b, e'_b = e_b + d_b."""
    own, pairs = game.along[:, which], game.pairs
    with_base, square = pairs[:, which], pairs[:, which, which]
    return Game(
        game.weights,
        game.along - own[:, None] + with_base - square[:, None],
        pairs - with_base[:, :, None] - with_base[:, None] + square[:, None, None],
        game.base + 2 * own + square,
    )


def _without_last(game: Game) -> Game:
    return Game(game.weights[:, :-1], game.along[:, :-1], game.pairs[:, :-1, :-1], game.base)


def together(studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds with intervals."""
    answer: dict[str, Any] = {}
    for space in SPACES:
        names = studies[0]["rank correlation"][space]
        answer[space] = {
            name: over_repetitions([one["rank correlation"][space][name] for one in studies]).facts()
            for name in names
        }
        answer[space]["random"] = _chance(len(studies[0]["lost"][space]))
    answer["attribution"] = {
        name: over_repetitions([one["attribution"][name] for one in studies]).facts()
        for name in studies[0]["attribution"]
    }
    return answer


def _chance(experts: int, tries: int = 2000) -> dict[str, float | int]:
    """The rank correlation of a random order, with the interval that holds 95 of 100 such."""
    source = torch.Generator().manual_seed(0)
    order = list(range(experts))
    drawn = [correlation(order, torch.rand(experts, generator=source).tolist()) or 0.0 for _ in range(tries)]
    low, high = torch.tensor(drawn).quantile(torch.tensor([0.025, 0.975])).tolist()
    return {"value": sum(drawn) / tries, "low": low, "high": high, "num": tries}


def _studied(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A run studied now, or what was printed of some before."""
    if path.suffix == ".json":
        return list(json.loads(path.read_text(encoding="utf-8"))["seeds"])
    return [study(Run.open(path), options)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--held-out", required=True, help="samples that the runs have not seen")
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--num", type=int, default=64, help="samples that each expert draws alone")
    parser.add_argument(
        "--truth", type=int, default=500, help="samples of each ensemble that is really sampled"
    )
    parser.add_argument("--steps", type=int)
    parser.add_argument("--solver", help="by default the recipe's, as the guidance")
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--rows", type=int, default=2000, help="noisy samples that values stand on")
    parser.add_argument("--known", type=int, default=25, help="samples of each expert whose maker is guessed")
    options = parser.parse_args()
    studies = [one for path in options.runs for one in _studied(path, options)]
    print(json.dumps({"study": "credit", "together": together(studies), "seeds": studies}, indent=1))


if __name__ == "__main__":
    main()
