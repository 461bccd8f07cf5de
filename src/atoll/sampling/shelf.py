"""Experts from their folders: networks of their own, or adapters on a base that is loaded once for all."""

import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from atoll.models import adapter, checkpoint, extrapolation, shrunk, siblings
from atoll.models.checkpoint import Blueprint
from atoll.models.expert import as_expert
from atoll.models.relay import Relay
from atoll.models.sharing import AdaptedExpert, Adapter, Base
from atoll.runs import Stage
from atoll.runs.shared import SharedNetworkContents
from atoll.sampling import bases
from atoll.sampling.arithmetic import Arithmetic


class Shelf:
    """Loads experts; the bases of adapters stay here for as long as the ensemble lives."""

    def __init__(
        self,
        stages: Sequence[Stage],
        device: torch.device,
        arithmetic: Arithmetic,
        shared: Stage[SharedNetworkContents] | None = None,
        began: Mapping[Path, Stage] | None = None,
        extrapolate: float = 1.0,
        shrink: bool = True,
    ) -> None:
        """`stages` are networks that adapters may belong to; `shared` has the low noise of all experts.

        Experts are taken `extrapolate` times as far from what they began with as training took them; `began`
        says with what, by their folders. Others, of which nobody knows that, are asked as they are.
        """
        self.shared = shared
        self.began, self.extrapolate, self.shrink = began or {}, extrapolate, shrink
        self.stages, self.device, self.arithmetic = list(stages), device, arithmetic
        self._bases: dict[str, Base] = {}
        self._routers: dict[str, nn.Module] = {}
        self._low: nn.Module | None = None
        self._lock = threading.Lock()

    def part(self, stage: Stage) -> nn.Module:
        """One expert as a velocity at all times, with the shared network below its time."""
        expert = self.expert(stage)
        if self.shared is None:
            return expert
        with self._lock:
            if self._low is None:
                self.shared.verify(checkpoint.WEIGHTS)
                self.shared.verify(checkpoint.CONFIG)
                self._low = self.expert(self.shared)
            return Relay(expert, self._low, self.shared.contents.below)

    def expert(self, stage: Stage) -> nn.Module:
        """One expert as a velocity; its files were checked when it was asked to serve."""
        weights, config = stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG
        blueprint = checkpoint.read_blueprint(config)
        if blueprint.adapter is None:
            network = self._moved(checkpoint.load(weights, config, self.device)[0], stage)
            expert = as_expert(self.arithmetic.prepared(network), blueprint.objective)
            return shrunk.read(file, expert, self.device) if (file := self._measured(stage)) else expert
        tensors = adapter.scaled(adapter.read(weights, blueprint), self.extrapolate)
        own = Adapter.of(tensors, blueprint.adapter, self.device, self.arithmetic.dtype)
        return AdaptedExpert(self._base(blueprint, stage), own)

    def _measured(self, stage: Stage) -> Path | None:
        """What was measured of an expert when it was trained, unless it is to be asked without."""
        measured = stage.path / shrunk.FILE
        return measured if self.shrink and self.extrapolate == 1 and measured.is_file() else None

    def _moved(self, network: nn.Module, stage: Stage) -> nn.Module:
        """A network as far from what it began with as is asked for; the file of that is mapped, not held."""
        began = self.began.get(stage.path)
        if began is None or self.extrapolate == 1:
            return network
        tensors = checkpoint.read_tensors(began.path / checkpoint.WEIGHTS)
        return extrapolation.extrapolate(network, tensors, self.extrapolate, str(stage.path))

    def _base(self, blueprint: Blueprint, stage: Stage) -> Base:
        """The network of an adapter, checked and loaded when it is first needed."""
        assert blueprint.adapter is not None
        with self._lock:
            name = blueprint.adapter.base
            if name not in self._bases:
                base = bases.base_of(blueprint, self.stages, stage.path)
                weights, config = base.verify(checkpoint.WEIGHTS), base.verify(checkpoint.CONFIG)
                network, about = checkpoint.load(weights, config, self.device)
                cast = self.arithmetic.cast(network)
                self._bases[name] = Base(cast, about.objective, self.arithmetic.compile)
            return self._bases[name]

    def router(self, stage: Stage) -> nn.Module:
        """A router, checked and loaded when it is first needed."""
        with self._lock:
            if stage.digest not in self._routers:
                weights, config = stage.verify(checkpoint.WEIGHTS), stage.verify(checkpoint.CONFIG)
                network = checkpoint.load(weights, config, self.device)[0]
                self._routers = {stage.digest: self.arithmetic.prepared(network)}
            return self._routers[stage.digest]

    def kin(self, stage: Stage, *, all_held: bool = False) -> Hashable | None:
        """What experts have in common that can be asked in one pass; None for a network of its own.

        Where a shared network has the low noise, each is asked alone.
        Adapters of one base, and on a CPU, if all are held at once, networks of one build: a GPU's blocks
        are compiled, each alone.
        """
        config = stage.path / checkpoint.CONFIG
        if not config.is_file() or self.shared is not None or self._measured(stage) is not None:
            return None
        blueprint = checkpoint.read_blueprint(config)
        about = blueprint.adapter
        if about is not None:
            return about.base, about.rank, about.targets, about.tokens
        alike = all_held and self.device.type == "cpu" and not self.arithmetic.compiled
        return siblings.kin(blueprint) if alike else None

    @property
    def held(self) -> int:
        """Bytes of the bases that are here."""
        networks = (base.network for base in self._bases.values())
        return sum(value.nbytes for network in networks for value in network.parameters())
