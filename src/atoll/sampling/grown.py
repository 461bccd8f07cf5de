"""The router of a run that parts were added to: it knows new parts by the prototypes of their data.

A learnt router keeps its word among the parts that it knows: the run's own, or, where it was refreshed, those
that had been added by then as well. Between them and each new part prototypes decide, in closed form, at a
temperature by time that was calibrated when the part was added.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from atoll.errors import CorruptError
from atoll.flow import prototypes
from atoll.models.conditions import Condition
from atoll.models.prototypes import Prototypes, Rows
from atoll.runs import Run
from atoll.runs.components import FOLDER, ROWS, Members

MOST = 256
"""Prototypes of one part."""
SLACK = 65_536
"""Bytes of a file of rows beyond its numbers."""


def read_rows(path: Path, dims: int, classes: int) -> Rows:
    """Prototypes from a file that nobody trusts: sizes are looked at before anything is read."""
    most = 4 * MOST * (dims + classes + 2) + SLACK
    shapes = {"means": (dims,), "variances": (), "sizes": (), **({"classes": (classes,)} if classes else {})}
    try:
        if path.stat().st_size > most:
            raise CorruptError(
                f"{path} has {path.stat().st_size:,} bytes, more than {MOST} prototypes need; do not trust it"
            )
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in sorted(names & shapes.keys())}
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path} cannot be read ({error}); ask its owner for it again") from None
    count = len(tensors["means"]) if "means" in tensors and tensors["means"].ndim else 0
    fits = names == shapes.keys() and 1 <= count <= MOST
    fits = fits and all(tuple(tensors[name].shape) == (count, *rest) for name, rest in shapes.items())
    if not fits or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise CorruptError(f"{path} holds no prototypes of samples of {dims} values; do not trust it")
    sound = all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    if not sound or float(tensors["variances"].min()) < 0 or float(tensors["sizes"].min()) <= 0:
        raise CorruptError(f"{path} holds prototypes that are not numbers, or of no samples; do not trust it")
    return Rows(tensors["means"], tensors["variances"], tensors["sizes"], tensors.get("classes"))


class Grown(nn.Module):
    """log p(k | x_t, t, condition) over all numbers that a run has given; those of gone parts have none."""

    def __init__(
        self,
        between: Prototypes,
        learnt: nn.Module | None,
        known: Sequence[int],
        places: Sequence[int],
        count: int | None = None,
    ) -> None:
        """`learnt` tells the `known` parts apart, which are one group; `places` are numbers of the others.

        Without it every known part is a group of its own. `count` numbers have been given in all.
        """
        super().__init__()
        self.between, self.learnt = between, learnt
        self.numbers, self.alone = [*known, *places], not places
        self.count = max(self.numbers) + 1 if count is None else count

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition = None) -> Tensor:
        """(batch, parts)."""
        if self.learnt is not None and self.alone:  # it knows everybody, and is asked alone
            answers = self.learnt(x_t, t, condition).double().log_softmax(1)
        elif self.learnt is not None:
            answers = prototypes.grown(
                self.learnt(x_t, t, condition).double(), self.between(x_t, t, condition)
            )
        else:
            answers = self.between(x_t, t, condition).log_softmax(1)
        logits = answers.new_full((len(answers), self.count), -torch.inf)
        logits[:, self.numbers] = answers
        return logits.float()


class Shares(NamedTuple):
    """How many of all samples each part stands for, by number."""

    priors: list[float]
    counts: list[list[int]] | None
    """Samples of each class in each part."""


def shares(run: Run, members: Members | None = None) -> Shares:
    """Of own clusters and added parts together; a part that is gone has none."""
    contents, members = run.partition.contents, run.members if members is None else members
    if not members.added:
        labels = contents.labels
        return Shares(list(contents.priors), None if labels is None else [list(row) for row in labels])
    gone = members.count(len(contents.sizes)) - len(contents.sizes)
    sizes = [*map(float, contents.sizes), *([0.0] * gone)]
    counts = None if contents.labels is None else [*map(list, contents.labels)]
    counts = None if counts is None else [*counts, *([0] * contents.classes for _ in range(gone))]
    for member in members.present:
        component = run.component(member.number).contents
        sizes[member.number] = float(component.rows)
        if counts is not None and component.labels is not None:
            counts[member.number] = list(component.labels)
    return Shares([size / sum(sizes) for size in sizes], counts)


def known_rows(run: Run, number: int) -> Path:
    """Where the prototypes of a run's own cluster are, as long as it holds the same samples."""
    sources = [stage.digest[:12] for stage in (run.cluster(number), run.expert(number)) if stage.done]
    sources = sources or ["dropped"]  # an export has no experts that were dropped
    paths = [run.path / FOLDER / f"known-{number:02d}-{held}.safetensors" for held in sources]
    return next((path for path in paths if path.is_file()), paths[0])  # made where samples were, or were not


def part_rows(run: Run, number: int) -> Rows:
    """The prototypes of one part."""
    contents = run.partition.contents
    classes = contents.classes if run.config.condition.kind == "class" else 0
    own = number < run.config.partition.clusters
    path = known_rows(run, number) if own else run.component(number).path / ROWS
    return read_rows(path, math.prod(contents.shape), classes)


def between(run: Run, members: Members, learnt: bool) -> Prototypes:
    """What decides between the parts that a router knows, together or each for itself, and all others."""
    groups, priors = owners(run, members, learnt), shares(run, members).priors
    rows = [part_rows(run, number) for number in groups]
    return Prototypes(rows, list(groups.values()), [priors[number] for number in groups])


def owners(run: Run, members: Members, learnt: bool) -> dict[int, int]:
    """The group of each part that is there or is the run's own: all that a learnt router knows are one."""
    own, known = run.config.partition.clusters, members.known(run.config.partition.clusters)
    numbers = [*range(own), *(member.number for member in members.present)]
    if not learnt:
        return {number: place for place, number in enumerate(numbers)}
    others = [number for number in numbers if number not in known]
    groups = {number: 0 for number in numbers if number in known}
    return groups | {number: 1 + place for place, number in enumerate(others)}


def router(run: Run, learnt: nn.Module | None, members: Members | None = None) -> nn.Module:
    """The router of all parts that there are, with the one that knows the run's own, where there is one.

    With `members`, of those instead of the parts that the run says it has.
    """
    members, own = run.members if members is None else members, run.config.partition.clusters
    known = members.known(own) if learnt is not None else tuple(range(own))
    places = [member.number for member in members.present if member.number not in known]
    module = between(run, members, learnt is not None).calibrated(members.betas)
    return Grown(module, learnt, known, places, members.count(own)).eval().requires_grad_(False)
