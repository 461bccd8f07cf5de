"""Whether a part that nobody can replay does harm: a run asked about the same samples with and without it.

Its data are elsewhere, so that its training cannot be taken again; what it does to samples of the others, and
to some of its own where somebody brings them, can be measured. The same samples, noises and times on both
sides: what is left of the difference is the part's doing. Some loss of the others is honest: where noise
hides from whose data a sample is, an ensemble that knows more answers for more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atoll.components import calibrating
from atoll.credit import paired
from atoll.credit.paired import Change
from atoll.data.brought import read as from_source
from atoll.errors import DataError
from atoll.flow import draws, mixture, path
from atoll.models import conditions
from atoll.runs import Run, Stage
from atoll.runs.components import Changed, Members, Seen, Weighed
from atoll.sampling import grown
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.opening import open_run_model
from atoll.train import prototypes
from atoll.train.prototypes import Labelled

ROWS, TOTAL, LEAST = 64, 256, 8
"""Samples of one part, of all of them if there are many parts, and the least of each."""
EVERY = 4
"""Of how many samples one is asked about even if nothing changes for it: for the loss before."""
LOSES, ALL_LOSE = 0.05, 0.02
"""The share of its loss that a part's home, and those of all, may lose to a new one: doubt of the routing."""
FEW_SIGMAS = 3.0
"""Standard errors that are noise where all others are taken together."""
TINY = 0.01
"""Weights below which nobody is asked."""
SAME = 1e-3
"""A change of weights that is none."""
PLAINLY: dict[str, Any] = {
    "precision": "float32",
    "model": "ensemble",
    "experts": None,
    "guidance": 1.0,
    "extrapolate": 1.0,
}
"""Settings with which a run is asked for its velocities alone, of experts as they were trained."""


class Asked(NamedTuple):
    """Noisy samples of several parts, and what networks are told of them."""

    x_t: Tensor
    t: Tensor
    target: Tensor
    owner: Tensor
    condition: Tensor | None


def weighed(run: Run, after: Members, new: Stage, home: Labelled | None = None) -> Weighed:
    """What the last of these members does to a run that has all the others, before anybody is told of it."""
    number, model = after.added[-1].number, open_run_model(run, **PLAINLY).ensemble
    samples = {k: some for k in run.members.serving(_own(run)) if (some := _samples(run, k)) is not None}
    most = min(ROWS, max(LEAST, TOTAL // max(1, len(samples))))
    each = [(k, _some(some, most, new.digest, k)) for k, some in samples.items()]
    if home is not None:
        each.append((number, _some(home, ROWS, new.digest, number)))
    asked = _asked(run, each, new.digest, model.classes)
    changes = paired.changes(*_losses(run, model, after, new, asked), asked.owner, _always(asked))
    shares = dict(enumerate(grown.shares(run, after).priors))
    return _record(changes, shares, number, seen_in(run))


def brought(run: Run, source: str) -> Labelled:
    """Samples like a part's own that somebody brings."""
    batch = from_source(run, run.members.count(_own(run)), source, ROWS)
    if len(batch.x_0) < LEAST:
        raise DataError(f"{source} has {len(batch.x_0)} samples; give at least {LEAST} to weigh a part by")
    return Labelled(batch.x_0, batch.label)


def lines(weighed: Weighed) -> list[str]:
    """What was found, for people: losses with and without the part, positive where it helps."""
    others = f"{weighed.others.samples} samples of the other parts ({weighed.seen})"
    rows = [f"{others}: {weighed.others.words} of their loss, part {weighed.worst} {weighed.most.words}"]
    if weighed.home is not None and weighed.whole is not None:
        rows.append(f"{weighed.home.samples} samples of its own: {weighed.home.words}")
        rows.append(f"together, each part by its share: {weighed.whole.words}")
    return rows


def refusal(weighed: Weighed) -> str | None:
    """Why a part should not come in, in half a sentence; None if it may."""
    if weighed.home is not None and _change(weighed.home).worse:
        return f"its own samples are drawn worse with it ({weighed.home.words})"
    if weighed.whole is not None and _change(weighed.whole).worse:
        return f"all parts together are worse with it ({weighed.whole.words})"
    if _change(weighed.others).rose(ALL_LOSE, FEW_SIGMAS):
        return f"the samples of the other parts are drawn worse with it ({weighed.others.words})"
    if _change(weighed.most).rose(LOSES):
        return f"the samples of part {weighed.worst} are drawn worse with it ({weighed.most.words})"
    return None


def _own(run: Run) -> int:
    return run.config.partition.clusters


def seen_in(run: Run) -> Seen:
    """What samples of a run's own clusters are: of several kinds the one that says least."""
    clusters = [run.cluster(number) for number in run.members.serving(_own(run)) if number < _own(run)]
    if not all(cluster.here for cluster in clusters):
        return "drawn by experts"
    unseen = all(prototypes.is_held_out(cluster) for cluster in clusters)
    return "held out" if unseen else "trained on"


def _samples(run: Run, number: int) -> Labelled | None:
    """Of a part that is there: of its cluster if that is the run's, else such as it drew itself."""
    if number < _own(run):
        return calibrating.judged(run, number)
    return calibrating.samples_in(run.component(number))


def _some(samples: Labelled, most: int, digest: str, number: int) -> Labelled:
    """Which samples are asked follows from the part itself: it cannot have been made for them."""
    source = draws.generator(int(digest[:12], 16), "gate/rows", number)
    rows = torch.randperm(len(samples.x_0), generator=source)[:most]
    return Labelled(samples.x_0[rows], None if samples.label is None else samples.label[rows])


def _asked(run: Run, each: Sequence[tuple[int, Labelled]], digest: str, classes: int) -> Asked:
    x_0 = torch.cat([some.x_0 for _, some in each])
    expert = run.config.expert
    drawn = draws.training_draws(
        int(digest[:12], 16), "gate", 0, x_0.shape, 0.0, times=expert.times, shift=expert.time_shift
    )
    labels = [
        torch.full((len(some.x_0),), -1) if some.label is None else some.label.cpu() for _, some in each
    ]
    label = torch.cat(labels)
    return Asked(
        path.point(x_0, drawn.noise, drawn.t),
        drawn.t,
        path.velocity(x_0, drawn.noise),
        torch.cat([torch.full((len(some.x_0),), number) for number, some in each]),
        torch.where(label < 0, classes, label) if classes else None,
    )


def _always(asked: Asked) -> Tensor:
    """(rows,): which rows are asked about whatever changes; of every part some, in the order of chance."""
    return torch.arange(len(asked.t)) % EVERY == 0


@torch.inference_mode()
def _losses(run: Run, model: Ensemble, after: Members, new: Stage, asked: Asked) -> tuple[Tensor, Tensor]:
    """(rows,) each: of the velocity without and with the part; every network is asked once for both.

    Only about rows whose weights change, and a few others; what is not asked has no loss on either side.
    """
    device, number = model.device, after.added[-1].number
    x_t, t = asked.x_t.to(device), asked.t.to(device)
    condition = model.told(asked.condition, len(x_t))
    sides = _sides(run, model, after, (x_t, t, condition))
    moved = (sides[0] - sides[1]).abs().amax(1) > SAME
    chosen = (moved | _always(asked).to(device)).nonzero()[:, 0]
    weights, condition = sides[:, chosen], conditions.take(condition, chosen)
    assert model.shelf is not None
    answers = []
    for k in after.serving(_own(run)):
        rows = (weights[:, :, k] > 0).any(0).nonzero()[:, 0]
        if len(rows):
            expert = model.shelf.part(new) if k == number else model.experts[k]
            v = [
                expert(x_t[chosen[some]], t[chosen[some]], conditions.take(condition, some)).float()
                for some in torch.split(rows, ROWS)
            ]
            answers.append(mixture.Answer(k, rows, torch.cat(v)))
    losses, target = torch.zeros(2, len(x_t)), asked.target[chosen.cpu()]
    for side in range(2):
        mixed = mixture.combine(weights[side], answers).velocity.cpu()
        losses[side, chosen.cpu()] = (mixed - target).square().flatten(1).mean(1)
    return losses[0], losses[1]


def _sides(
    run: Run, model: Ensemble, after: Members, asked: tuple[Tensor, Tensor, conditions.Condition]
) -> Tensor:
    """(2, rows, parts): weights without and with the part; a learnt router is asked once."""
    learnt = model.router.learnt if isinstance(model.router, grown.Grown) else model.router
    learnt = None if learnt is None else _Answered(learnt(*asked))
    count, sides = after.count(_own(run)), []
    for members in (run.members, after):
        logits = grown.router(run, learnt, members).to(model.device)(*asked)
        sides.append(_weights(logits, members.serving(_own(run)), count))
    return torch.stack(sides)


class _Answered(nn.Module):
    """A router that was asked already: it says the same for both sides."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: object) -> Tensor:
        """(batch, parts) of the batch that it was asked about."""
        return self.answer


def _weights(logits: Tensor, serving: Sequence[int], count: int) -> Tensor:
    """(rows, count): of the parts that serve, without those that have next to nothing."""
    weights, there = logits.new_zeros(len(logits), count), torch.zeros(count, dtype=torch.bool)
    weights[:, : logits.shape[1]] = logits.softmax(1)
    there[list(serving)] = True
    weights = mixture.restrict(weights, there.to(logits.device))
    weights = torch.where(weights < TINY, 0.0, weights)
    return weights / weights.sum(1, keepdim=True)


def _record(changes: dict[int, Change], shares: dict[int, float], number: int, seen: Seen) -> Weighed:
    others = {k: change for k, change in changes.items() if k != number}
    worst = min(others, key=lambda k: others[k].mean / max(others[k].loss, 1e-12))
    home = changes.get(number)
    return Weighed(
        seen=seen,
        others=_changed(paired.together(others, shares)),
        worst=worst,
        most=_changed(others[worst]),
        home=None if home is None else _changed(home),
        whole=None if home is None else _changed(paired.together(changes, shares)),
    )


def _changed(change: Change) -> Changed:
    return Changed(fell=change.mean, error=change.error, loss=change.loss, samples=change.rows)


def _change(changed: Changed) -> Change:
    return Change(changed.fell, changed.error, changed.loss, changed.samples)
