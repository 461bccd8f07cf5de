"""From the folders of trained networks to an ensemble: the one place where one is built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from atoll.errors import RunError
from atoll.flow.mixture import given_class
from atoll.models import checkpoint, conditions, costs, entry, shrunk
from atoll.models.conditions import Condition
from atoll.runs import Stage
from atoll.runs.records import RouterContents
from atoll.runs.shared import SharedNetworkContents
from atoll.sampling import bases, entering, memory, routing
from atoll.sampling.arithmetic import PLAIN, Arithmetic
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.shelf import Shelf

MEASURED = (shrunk.FILE, entry.FILE)
"""Files beside the weights of an expert of which something was measured when it was trained."""


@dataclass(frozen=True)
class Parts:
    """Folders of networks, and what is known of the clusters behind them."""

    experts: Sequence[Stage]
    priors: Sequence[float]
    router: Stage[RouterContents] | None = None
    counts: Sequence[Sequence[int]] | None = None
    """Samples of each class in each cluster."""
    first: int = 0
    """An expert that is there; others may be missing, if nobody asks them."""
    bases: Sequence[Stage] = ()
    """Networks that adapters among the experts may belong to."""
    absent: frozenset[int] = frozenset()
    """Experts that nobody may ask."""
    shared: Stage[SharedNetworkContents] | None = None
    """The network for the low noise of all experts, without which none of them is whole."""
    weak: Stage | None = None
    """What guidance moves away from, if not from the same experts told nothing."""
    untold: bool = False
    """Whether that one is told nothing, whatever experts are told."""
    began: Sequence[Stage] = ()
    """What each of the first experts began with, where they are extrapolated."""
    extrapolate: float = 1.0
    """How many times as far from that as training took them."""
    shrink: bool = True
    """Whether predictions of noise are shrunk where their errors grow, as was measured of them."""
    grown: Callable[[nn.Module | None], nn.Module] | None = None
    """Gives the router of a run that parts were added to, from the one that knows its own."""


def build(
    parts: Parts,
    device: torch.device,
    resident: int | None = None,
    arithmetic: Arithmetic = PLAIN,
    before: Ensemble | None = None,
) -> Ensemble:
    """An ensemble on a device; experts are loaded when they are first asked, unverified.

    At most `resident` are held at once, by default as many as fit. What an ensemble `before` it, in the same
    arithmetic on the same device, has loaded of the same networks is taken over.
    """
    blueprint = checkpoint.read_blueprint(parts.experts[parts.first].path / checkpoint.CONFIG)
    priors = torch.tensor(parts.priors, device=device)
    counts = parts.counts if blueprint.classes else None
    router = parts.router if parts.router is not None and parts.router.done else None
    shelf = Shelf(
        parts.bases, device, arithmetic, parts.shared, _began(parts), parts.extrapolate, parts.shrink
    )
    if before is not None and before.shelf is not None:
        shelf = before.shelf
        shelf.stages = list(parts.bases)
    learnt = None if router is None else shelf.router(router)
    experts = roster(parts.experts, shelf, resident)
    if before is not None and isinstance(before.experts, Roster):
        experts.take_over(before.experts)
    return Ensemble(
        experts=experts,
        shelf=shelf,
        weak=None if parts.weak is None else _weak(parts.weak, shelf, parts.untold, blueprint.classes),
        priors=priors,
        by_class=None if counts is None else given_class(torch.tensor(counts, device=device), priors),
        shape=tuple(blueprint.shape),
        router=learnt if parts.grown is None else parts.grown(learnt).to(device),
        classes=blueprint.classes,
        text=blueprint.text,
        band=routing.Band() if router is None or parts.grown is not None else _band(router),
        absent=parts.absent,
        entry=_entry(parts, blueprint, device),
        maps=blueprint.steps,
        product=costs.product(costs.Network(blueprint.network, tuple(blueprint.shape)), 1),
    )


def _entry(parts: Parts, blueprint: checkpoint.Blueprint, device: torch.device) -> entering.Entering | None:
    """Where samples enter: known of those that are told nothing or a class, by velocities and no flow map."""
    if blueprint.condition == "text" or blueprint.steps:
        return None
    return entering.of_parts(parts.experts, parts.priors, parts.absent, device)


def lone(
    expert: Stage, device: torch.device, arithmetic: Arithmetic = PLAIN, *, shrink: bool = True
) -> Ensemble:
    """One expert that acts alone, after its files were checked."""
    _require(expert)
    expert.verify(checkpoint.WEIGHTS)
    expert.verify(checkpoint.CONFIG)
    verify_measured(expert)
    near, shared = bases.near(expert), bases.shared_near(expert)
    parts = Parts([expert], [1.0], bases=near, shared=shared, shrink=shrink)
    return build(parts, device, arithmetic=arithmetic)


def verify_measured(expert: Stage) -> None:
    """Check what was measured of an expert and lies beside its weights."""
    for name in MEASURED:
        if name in expert.record.files:
            expert.verify(name)


def swap(ensemble: Ensemble, index: int, expert: Stage) -> None:
    """Put the expert of a folder, after its files were checked, in the place of another, while others ask.

    An adapter of a base that is here is all that is loaded.
    """
    assert isinstance(ensemble.experts, Roster)
    assert ensemble.shelf is not None
    _require(expert)
    config = expert.verify(checkpoint.CONFIG)
    blueprint, file = checkpoint.read_blueprint(config), expert.verify(checkpoint.WEIGHTS)
    inputs = (tuple(blueprint.shape), blueprint.classes, blueprint.text)
    if inputs != (tuple(ensemble.shape), ensemble.classes, ensemble.text):
        raise RunError(f"{expert.path} makes other samples, or is told something else, than the others here")
    moments = None if ensemble.entry is None else entering.moments(expert, ensemble.device)
    made = ensemble.shelf.part(expert)  # what cannot be loaded is refused before anything changes
    kin = ensemble.shelf.kin(expert, all_held=ensemble.experts.room >= len(ensemble.experts))
    ensemble.experts.replace(index, partial(ensemble.shelf.part, expert), file, kin, made)
    if ensemble.entry is not None and moments is not None:
        ensemble.entry.known[index] = moments


def roster(experts: Sequence[Stage], shelf: Shelf, resident: int | None = None) -> Roster:
    """The experts of these folders, loaded when they are asked; adapters of one base share it."""
    files = [stage.path / checkpoint.WEIGHTS for stage in experts]
    kin = [shelf.kin(stage) for stage in experts]
    shared = [stage.path / checkpoint.WEIGHTS for stage in shelf.stages] if any(kin) else []
    if shelf.shared is not None:
        shared.append(shelf.shared.path / checkpoint.WEIGHTS)
    room = resident or memory.fitting(files, shelf.device, shelf.arithmetic.dtype, shared)
    if room >= len(experts):
        kin = [shelf.kin(stage, all_held=True) for stage in experts]
    return Roster([partial(shelf.part, stage) for stage in experts], room, files, kin, map(mark, experts))


def mark(stage: Stage) -> str | None:
    """What tells one expert from another: the digest of its files; None for one that is not there."""
    return stage.digest if stage.done else None


class Untold(nn.Module):
    """A network that is told nothing, whatever is said: weaker, and without a condition."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.network, self.classes = network, classes

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition = None) -> Tensor:
        """The velocity where nothing is known of the sample."""
        answer: Tensor = self.network(x_t, t, conditions.null(condition, self.classes))
        return answer


def _began(parts: Parts) -> dict[Path, Stage]:
    """What experts began with, by their folders, after its files were checked; often it is one for all."""
    for stage in {stage.path: stage for stage in parts.began}.values():
        _require(stage)
        stage.verify(checkpoint.WEIGHTS)
    return {expert.path: stage for expert, stage in zip(parts.experts, parts.began, strict=False)}


def _weak(stage: Stage, shelf: Shelf, untold: bool, classes: int) -> nn.Module:
    _require(stage)
    stage.verify(checkpoint.WEIGHTS)
    stage.verify(checkpoint.CONFIG)
    network = shelf.expert(stage)
    return Untold(network, classes) if untold else network


def _require(stage: Stage) -> None:
    if not stage.done:
        raise RunError(f"{stage.path} is not trained yet; run `atoll run` on its recipe first")


def _band(router: Stage[RouterContents]) -> routing.Band:
    """The router's band, if it was measured."""
    measured = router.contents.band
    return routing.Band(*measured) if measured else routing.Band()
