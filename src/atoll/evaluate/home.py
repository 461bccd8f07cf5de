"""What each part is paid for and no more: the base and one part asked about samples of its own cluster.

Rows are asked where they tell most: a few of every part of the time first, then where values scatter (Neyman
1934), until all are known well enough or the budget is spent. What scatters with things that need no network,
the errors of Gaussians with moments of the samples, is taken out by regression (Cochran 1977, §7).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll.credit.estimate import Adjusted, adjusted
from atoll.credit.target import expected_velocity, gaussian_velocity
from atoll.data.store import Batch
from atoll.evaluate import held_out
from atoll.evaluate.ground import Ground
from atoll.evaluate.routing import told
from atoll.evaluate.worth import NOISY, Progress, kinds
from atoll.flow import draws, gaussian, path
from atoll.flow.gaussian import Gaussian
from atoll.runs import Run
from atoll.sampling.ensemble import Ensemble

FEWEST, FIRST = 2, 4
"""Rows of every stratum that are asked whatever they cost, and before anything is believed."""
GROWTH = 2
"""How many times as many rows as there are may be asked in one round."""
HEADROOM = 1.1
FREE = 128
"""Draws without a network, for each row with one, that say what controls are on the average."""
CONTROLS, DIRECTIONS = 3, 8
"""Of Gaussians: how many are asked, and in how many directions they are not round."""
BLOCK = 4096
"""Draws without a network that are held at once."""


@dataclass
class Home:
    """One part at home: what was asked so far, and what of it is not by chance."""

    number: int
    samples: Tensor
    """Numbers of the held-out samples of its cluster, in the order in which they are taken."""
    known: Gaussian
    source: torch.Generator
    counts: Tensor
    """Rows of every stratum."""
    rows: dict[str, Tensor] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """Rows so far."""
        return int(self.counts.sum())

    def take(self, columns: Mapping[str, Tensor]) -> None:
        """Put rows to the others."""
        known = {name: [self.rows[name]] if name in self.rows else [] for name in columns}
        self.rows = {name: torch.cat([*known[name], column.double()]) for name, column in columns.items()}
        strata = len(self.counts)
        self.counts = torch.bincount(self.rows["stratum"].long(), minlength=strata)


@dataclass(frozen=True)
class Paid:
    """What one part is paid for, as a share of all samples: its value, its error, and the rows behind it."""

    number: int
    value: float
    error: float
    rows: int

    @property
    def relative(self) -> float:
        """The standard error as a share of the value."""
        return self.error / abs(self.value) if self.value else float("inf")


@dataclass(frozen=True)
class Price:
    """FLOPs of one row, and what may be spent in all."""

    row: float
    """Of the networks."""
    points: int
    """Held-out samples of the largest cluster, which targets near the noise are means of."""
    size: int
    """Values of a sample."""
    budget: float

    def of(self, rows: int) -> float:
        """What so many rows cost, with the draws and the mean targets that belong to them."""
        return rows * (self.row + (FREE * 8 * DIRECTIONS + 4 * self.points) * self.size)


class Pass:
    """One epoch of what is paid, part by part."""

    def __init__(self, run: Run, ensemble: Ensemble, base: Ground, batch: Batch, price: Price) -> None:
        self.run, self.ensemble, self.base, self.batch, self.price = run, ensemble, base, batch, price
        self.kind, self.condition = kinds(batch), told(ensemble, batch)
        self.all = gaussian.fitted(batch.x_0.cpu(), DIRECTIONS)
        self.mean, self.variance = batch.x_0.mean(0), batch.x_0.var(0, correction=0)
        cluster, strata = batch.cluster_on_cpu, run.config.credit.bins
        numbers = [k for k in range(len(ensemble.experts)) if k not in ensemble.absent]
        self.homes = []
        for number in numbers:
            own = (cluster == number).nonzero()[:, 0]
            if len(own) < 2:
                continue
            source = draws.generator(held_out.seed_of(run), f"credit/home {number}", run.config.credit.epoch)
            order = own[torch.randperm(len(own), generator=source)]
            known = gaussian.fitted(batch.x_0[own].cpu(), DIRECTIONS)
            self.homes.append(Home(number, order, known, source, torch.zeros(strata, dtype=torch.long)))

    @torch.inference_mode()
    def asked(self, progress: Progress | None = None) -> list[Paid]:
        """Ask until all parts are known well enough, or nothing is left to spend."""
        strata = self.run.config.credit.bins
        affordable = int(self.price.budget / max(1e-9, self.price.of(strata * len(self.homes))))
        first = max(FEWEST, min(FIRST, affordable))
        wanted = {home.number: torch.full((strata,), first) for home in self.homes}
        while any(int(more.sum()) for more in wanted.values()):
            for home in self.homes:
                if int(wanted[home.number].sum()):
                    self._ask(home, wanted[home.number])
            if progress is not None:
                progress(sum(home.asked for home in self.homes), sum(self._most()))
            wanted = self._wanted()
        return [self._paid(home, self._known(home)) for home in self.homes]

    @property
    def flops(self) -> float:
        """What was spent."""
        return sum(self.price.of(home.asked) for home in self.homes)

    def _most(self) -> list[int]:
        each = self.price.budget / len(self.homes) / self.price.of(1)
        return [max(home.asked, int(each)) for home in self.homes]

    def _wanted(self) -> dict[int, Tensor]:
        """Rows of every stratum that each part needs yet, as far as the budget goes."""
        needs = {home.number: self._need(home, self._known(home)) for home in self.homes}
        left = self.price.budget - self.flops
        total = self.price.of(sum(int(need.sum()) for need in needs.values()))
        part = min(1.0, left / total) if total > 0 and left > 0 else 0.0
        return {number: (need * part).long() for number, need in needs.items()}

    def _need(self, home: Home, known: Adjusted) -> Tensor:
        """n_s = n σ_s / Σ σ, with n so that the standard error is what is wanted; some more, to be sure."""
        goal = self.run.config.credit.precision * float(known.mean.abs())
        spread = known.spread
        if float(known.error) <= goal:
            return torch.zeros_like(home.counts)
        needed = HEADROOM * (float(spread.mean()) / max(goal, 1e-12)) ** 2
        each = min(needed, float((1 + GROWTH) * home.asked)) * spread / spread.sum().clamp(min=1e-38)
        return (each.ceil().long() - home.counts).clamp(min=0)

    def _known(self, home: Home) -> Adjusted:
        """The value at home, of clipped answers, from all rows so far."""
        rows, stratum = home.rows, home.rows["stratum"].long()
        length, factors = rows["square"].clamp(min=0).sqrt(), torch.ones_like(rows["square"])
        for index in sorted(set(stratum.tolist())):
            here = stratum == index
            limit = self.run.config.credit.clip * length[here].median()
            factors[here] = (limit / length[here].clamp(min=1e-38)).clamp(max=1.0)
        values = -2 * factors * rows["along"] - factors**2 * rows["square"]
        return adjusted(values, rows["controls"], stratum, rows["sample"].long(), len(home.counts), FREE)

    def _paid(self, home: Home, known: Adjusted) -> Paid:
        share = len(home.samples) / len(self.batch.x_0)
        return Paid(home.number, share * float(known.mean), share * float(known.error), home.asked)

    def _ask(self, home: Home, counts: Tensor) -> None:
        """So many rows more of every stratum."""
        stratum = torch.repeat_interleave(torch.arange(len(counts)), counts)
        taken = (home.asked + torch.arange(len(stratum))) % len(home.samples)
        sample = home.samples[taken]
        t, noise = self._drawn(home, stratum)
        controls = self._controls(home, sample, t, noise) - self._usual(home, stratum)
        size, columns = self.run.config.credit.batch, []
        for start in range(0, len(stratum), size):
            some = slice(start, start + size)
            columns.append(self._answers(home, sample[some], t[some], noise[some]))
        along, square = (torch.cat(column) for column in zip(*columns, strict=True))
        home.take(
            {"along": along, "square": square, "controls": controls, "stratum": stratum, "sample": sample}
        )

    def _drawn(self, home: Home, stratum: Tensor) -> tuple[Tensor, Tensor]:
        """Times within strata, and noises."""
        expert, strata = self.run.config.expert, self.run.config.credit.bins
        uniform = (stratum + torch.rand(len(stratum), generator=home.source)) / strata
        t = draws.logit_normal(uniform) if expert.times == "logit-normal" else uniform
        noise = torch.randn(len(stratum), *self.batch.x_0.shape[1:], generator=home.source)
        return draws.shifted(t, expert.time_shift), noise

    def _controls(self, home: Home, sample: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """(rows, controls): what needs no network and scatters as values do."""
        x_0 = self.batch.x_0[sample].cpu()
        x_t, target = path.point(x_0, noise, t), path.velocity(x_0, noise)
        guesses = (
            gaussian_velocity(x_t, t, self.mean.cpu(), self.variance.cpu()),
            gaussian.velocity(self.all, x_t, t),
            gaussian.velocity(home.known, x_t, t),
        )
        return torch.stack([(one - target).square().flatten(1).mean(1) for one in guesses], 1).double()

    def _usual(self, home: Home, stratum: Tensor) -> Tensor:
        """(rows, controls): their means in the stratum of each row, by many draws without a network."""
        means = torch.zeros(len(home.counts), CONTROLS, dtype=torch.float64)
        for index, count in enumerate(torch.bincount(stratum, minlength=len(home.counts)).tolist()):
            for start in range(0, FREE * count, BLOCK):
                within = torch.full((min(BLOCK, FREE * count - start),), index)
                some = home.samples[torch.randint(len(home.samples), (len(within),), generator=home.source)]
                t, noise = self._drawn(home, within)
                means[index] += self._controls(home, some, t, noise).sum(0) / (FREE * count)
        return means[stratum]

    def _answers(self, home: Home, sample: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """⟨d, v_b - v*⟩ and ‖d‖² of a part at some rows, each a mean over values."""
        device = self.ensemble.device
        x_0, t, noise = self.batch.x_0[sample].to(device), t.to(device), noise.to(device)
        x_t, target = path.point(x_0, noise, t), path.velocity(x_0, noise)
        condition = None if self.condition is None else self.condition[sample].to(device)
        if condition is None:
            points = self.batch.x_0[home.samples].to(device)
            possible = self.kind[sample, None] == self.kind[home.samples]
            expected = expected_velocity(x_t, t, points, possible.to(device))
            target = torch.where(path.expand(t, x_t) > NOISY, expected, target)
        ground = self.base.velocity(x_t, t, condition).float()
        apart = (self.ensemble.experts[home.number](x_t, t, condition).float() - ground).flatten(1)
        along = (apart * (ground - target).flatten(1)).mean(1)
        return along.cpu(), apart.square().mean(1).cpu()
