"""How far experts and samples are best moved away from the start: tried on a few, by their distance to data.

What is best differs by data: twice as far brings experts of one set a third nearer to it and is three times
too far on another (docs/results.md). The loss on held-out samples does not tell, a few samples do.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from atoll import devices
from atoll.config import GUIDANCE_NUM, GUIDANCE_REAL, GUIDANCE_STEPS
from atoll.data.store import Batch, Reader
from atoll.evaluate import alone
from atoll.evaluate.distances import Frechet
from atoll.evaluate.unlearnt import Unlearnt
from atoll.flow import draws, gaussian
from atoll.runs import Run, Stage, inputs
from atoll.runs.chosen import GuidanceContents
from atoll.sampling.opening import open_run_model
from atoll.sampling.sampler import Sampler

READ = 4000
"""At most so many real samples are read, of which some are compared with."""
WIDTH = 24
"""Principal components in which samples are compared: with few samples, more would be noise."""


def choose(run: Run) -> Stage[GuidanceContents]:
    """Draw a few samples with each extrapolation, then with each guidance; keep the nearest to the data."""
    stage, made_from = run.guidance, inputs.guidance_from(run)
    if not stage.begin(made_from):
        return stage
    draw, asked = _drawn_from(run), run.config.sample
    first = min(asked.guidances, default=asked.guidance)
    farther = nearest(asked.extrapolations or (asked.extrapolate,), lambda reach: draw(reach, first))
    reach = farther[0]
    guided = nearest(asked.guidances or (asked.guidance,), lambda guidance: draw(reach, guidance))
    contents = GuidanceContents(
        guidance=guided[0],
        distances=guided[1] if asked.guidances else (),
        extrapolate=reach,
        extrapolations=farther[1] if asked.extrapolations else (),
    )
    stage.finish(made_from, [], contents)
    return stage


def _drawn_from(run: Run) -> Callable[[float, float], float]:
    """Tells how far a few samples are from the data, by extrapolation and guidance; each is drawn once."""
    real = _real(run)
    distance = distance_to(real.x_0)
    some = _rows(real, run.config.sample.experts)
    noise = _noise(real, some, run.config.seed)

    @functools.cache
    def opened(reach: float) -> Sampler:
        return open_run_model(run, str(devices.best()), guidances=(), extrapolations=(), extrapolate=reach)

    @functools.cache
    def tried(reach: float, guidance: float) -> float:
        sampler = opened(reach)
        drawn = sampler.sample(
            GUIDANCE_NUM,
            guidance=guidance,
            strategy="oracle",  # as many of each cluster as in the data: what is left is what differs
            cluster=real.cluster[some].tolist(),
            solver="dpm++",
            steps=GUIDANCE_STEPS,
            noise=noise,
            entry=1.0,  # later moments stand for experts, and hide what these lack
            **alone.asking(real, sampler.ensemble.kind, some),
        )
        return distance(drawn.cpu())

    return tried


def nearest(
    values: Iterable[float], tried: Callable[[float], float]
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """The best of some values, which are tried from the least on as long as that helps; and what was tried.

    Of one value nothing is asked.
    """
    several = sorted(set(values))
    if len(several) == 1:
        return several[0], ()
    distances: list[tuple[float, float]] = []
    for value in several:
        distances.append((value, tried(value)))
        if len(distances) > 1 and distances[-1][1] > distances[-2][1]:
            break
    return min(distances, key=lambda pair: pair[1])[0], tuple(distances)


def distance_to(real: Tensor) -> Callable[[Tensor], float]:
    """The Fréchet distance of samples to real ones, in the first principal components of what is seen."""
    see = Unlearnt(real.shape[1:])
    rows = see(real[_spread(len(real), min(len(real), GUIDANCE_REAL))])
    mean = rows.mean(0)
    components = torch.linalg.svd(rows - mean, full_matrices=False).Vh[:WIDTH].T
    to = Frechet((rows - mean) @ components)
    return lambda x_0: to((see(x_0) - mean) @ components)


def _rows(real: Batch, serving: Sequence[int] | None) -> Tensor:
    """Real samples whose like is drawn: of every cluster that serves as many as is its share."""
    rows = torch.arange(len(real.x_0))
    if serving is not None:
        rows = rows[torch.isin(real.cluster, torch.tensor(serving))]
    return rows[_spread(len(rows), GUIDANCE_NUM)]


def _noise(real: Batch, some: Tensor, seed: int) -> Tensor:
    """Noise of few samples as of many: what a choice sees is then the experts' doing, and hardly chance."""
    drawn = draws.sample_noise(seed, range(len(some)), real.x_0.shape[1:])
    return draws.matched(drawn, real.cluster[some], gaussian.fitted(real.x_0[some], WIDTH).basis)


def _spread(rows: int, number: int) -> Tensor:
    """So many of all rows, evenly: they rest by cluster, and every cluster has its share."""
    return torch.arange(number) * rows // number


def _real(run: Run) -> Batch:
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    return Reader(clusters, 1, run.config.seed).first(READ)
