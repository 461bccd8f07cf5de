"""Whether a component is a part that is there already: by what it says, however its weights are written.

Weights with their units in another order are far apart and one network. So both are asked at public points,
where the part that is there is at home, and what they say beyond the base is compared.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atoll.credit import defence
from atoll.credit.shapley import Game, differences
from atoll.credit.target import gaussian_velocity
from atoll.flow import draws, path
from atoll.runs import Run, Stage
from atoll.runs.components import ComponentContents
from atoll.sampling import bases, building, grown
from atoll.sampling.arithmetic import PLAIN
from atoll.sampling.shelf import Shelf

POINTS = 8
"""Noisy prototypes of a part at which both are asked, at as many times."""
OTHERS = 3
"""Parts whose mean stands for a base, where there is no start."""
CPU = torch.device("cpu")
Asked = tuple[Tensor, Tensor, Tensor | None]
"""x_t, t and classes, if experts are told any."""


@torch.inference_mode()
def copied(stage: Stage[ComponentContents], run: Run) -> int | None:
    """The number of the part that says what this component says; None for a new one."""
    shelf, serving = Shelf(bases.of_run(run), CPU, PLAIN), run.members.serving(run.config.partition.clusters)
    new, parts = shelf.expert(stage), building.roster(run.parts, shelf)
    start = shelf.expert(run.start) if run.start.done else None
    for place, number in enumerate(serving):
        asked = points(run, number)
        others = [*serving[place + 1 :], *serving[:place]][:OTHERS]
        base = _mean([start] if start is not None else [parts[k] for k in others], asked)
        velocities = torch.stack([expert(*asked).float() for expert in (parts[number], new)])
        even = torch.full((POINTS, 2), 0.5)
        if defence.copies(defence.likeness(Game.of(even, differences(velocities, base), base, base))):
            return number
    return None


def _mean(experts: Sequence[nn.Module], asked: Asked) -> Tensor:
    """What is no part's own: the start's answer, or that of others on the average; at last, a Gaussian's."""
    if experts:
        return torch.stack([expert(*asked).float() for expert in experts]).mean(0)
    zero = torch.zeros(asked[0].shape[1:])
    return gaussian_velocity(asked[0], asked[1], zero, zero + 1)


def points(run: Run, number: int) -> Asked:
    """Where a part is at home, known to all: prototypes of its data with noise, times, and their classes."""
    rows, shape = grown.part_rows(run, number), run.partition.contents.shape
    chosen = torch.arange(POINTS) % len(rows.means)
    t = (torch.arange(POINTS) + 0.5) / POINTS
    source = draws.generator(run.config.seed, "component/points", number)
    noise = torch.randn(POINTS, *shape, generator=source)
    label = None if rows.classes is None else rows.classes.argmax(1)[chosen]
    return path.point(rows.means[chosen].view(POINTS, *shape), noise, t), t, label
