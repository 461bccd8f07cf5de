"""The velocities of a run's experts on held-out samples, as the game that values are read off."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.credit.shapley import Game, differences
from atoll.credit.target import expected_velocity
from atoll.data.store import Batch
from atoll.errors import ConfigError
from atoll.evaluate import held_out
from atoll.evaluate.ground import Ground
from atoll.evaluate.held_out import Plan
from atoll.evaluate.routing import told
from atoll.flow import mixture, path
from atoll.runs import Run
from atoll.sampling.ensemble import Ensemble

Progress = Callable[[int, int], None]

NOISY = 0.5
"""Above this time the mean target given x_t takes the target's place, which scatters more."""


@dataclass(frozen=True)
class Played:
    """A game and what is known of its rows."""

    game: Game
    plan: Plan
    cluster: Tensor
    label: Tensor | None
    numbers: tuple[int, ...] = ()
    """Those of the parts; by default they are counted from 0 on, as where none is gone."""

    @property
    def owner(self) -> tuple[int, ...]:
        """The number of each part, which is that of the cluster where it is at home."""
        return self.numbers or tuple(range(self.game.weights.shape[1]))


@torch.inference_mode()
def play(
    run: Run,
    ensemble: Ensemble,
    base: Ground,
    batch: Batch,
    progress: Progress | None = None,
    rows: Plan | None = None,
) -> Played:
    """Ask every part that is there and the base about the same noisy held-out samples, some at a time.

    By default about those of the run's epoch.
    """
    if ensemble.router is None and len(ensemble.experts) > 1:
        raise ConfigError(
            "this run has no router, so that nobody knows who answers; run `atoll router` first"
        )
    rows = rows or held_out.plan(run, len(batch.x_0))
    points = batch.x_0[rows.points].to(ensemble.device)
    games, size = [], run.config.credit.batch
    for start in range(0, len(rows.t), size):
        some = slice(start, min(start + size, len(rows.t)))
        games.append(_asked(run, ensemble, base, batch, rows, some, points))
        if progress is not None:
            progress(some.stop, len(rows.t))
    label = None if batch.label is None else batch.label[rows.sample]
    return Played(Game.joined(games), rows, batch.cluster_on_cpu[rows.sample], label, _there(ensemble))


def _there(ensemble: Ensemble) -> tuple[int, ...]:
    """Parts that can be asked."""
    return tuple(k for k in range(len(ensemble.experts)) if k not in ensemble.absent)


def _asked(
    run: Run, ensemble: Ensemble, base: Ground, batch: Batch, rows: Plan, some: slice, points: Tensor
) -> Game:
    """The game of a few rows, on the CPU."""
    device, sample = ensemble.device, rows.sample[some]
    x_0, t = batch.x_0[sample].to(device), rows.t[some].to(device)
    noise = held_out.noise(run, some, x_0.shape[1:]).to(device)
    x_t = path.point(x_0, noise, t)
    conditions = told(ensemble, batch)
    condition = None if conditions is None else conditions[sample].to(device)
    there = _there(ensemble)
    velocities = torch.stack([ensemble.experts[k](x_t, t, condition).float() for k in there])
    ground = base.velocity(x_t, t, condition).float()
    target = path.velocity(x_0, noise)
    loss = (ground - target).square().flatten(1).mean(1)
    if condition is None:
        # Any held-out sample of its kind may be behind x_t then. Near the data it is certainly this one.
        kind = kinds(batch)
        possible = kind[sample, None] == kind[rows.points]
        expected = expected_velocity(x_t, t, points, possible.to(device))
        target = torch.where(path.expand(t, x_t) > NOISY, expected, target)
    served = torch.tensor([k in there for k in range(len(ensemble.experts))], device=device)
    weights = mixture.restrict(ensemble.posterior(x_t, t, condition), served)[:, list(there)]
    game = Game.of(weights, differences(velocities, ground), ground, target)
    return Game(game.weights.cpu(), game.along.cpu(), game.pairs.cpu(), loss.cpu())


def kinds(batch: Batch) -> Tensor:
    """A number for each cluster and class: values are told by either."""
    if batch.label is None:
        return batch.cluster_on_cpu
    label = batch.label.cpu() + 1  # -1 where there is none
    return batch.cluster_on_cpu * (int(label.max()) + 1) + label
