"""The state of training at rest: weights, averaged weights, optimiser and position, whole or not at all."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.config import TrainConfig
from atoll.errors import AtollError, CorruptError, TrainingError
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.runs import file_digest, read_json, replacing, write_json
from atoll.train import sharding
from atoll.train.optimiser import Optimiser
from atoll.train.ranks import Ranks
from atoll.train.scaling import LossScale

LATEST = "latest.json"
DECISIONS = "decisions.json"
SCALE = "scale/"
HEADER = 2**20
"""Bytes beside the tensors for which there must be room: names, positions, the pointer."""


class TrainingState:
    """A network in training."""

    def __init__(
        self, model: nn.Module, optimisers: Sequence[Optimiser], scale: LossScale | None = None
    ) -> None:
        self.model, self.scale = model, scale
        self.optimisers = list(optimisers)
        self.step = 0
        learnt = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self.names = [name for name, _ in learnt]
        self.parameters = [parameter for _, parameter in learnt]
        """What is trained; of an adapter, its own weights alone."""
        self.ema = [sharding.local(parameter.detach()).clone() for parameter in self.parameters]
        """What is here of the averaged weights."""

    @contextlib.contextmanager
    def as_averaged(self) -> Iterator[None]:
        """For a while the network has the averaged weights, in exchange for its own: no memory is needed."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, average in zip(self.parameters, self.ema, strict=True):
            present = sharding.local(parameter.detach())
            before = present.clone()
            present.copy_(average)
            average.copy_(before)

    def averaged(self) -> Iterator[tuple[str, Tensor]]:
        """The averaged weights by name, one by one: the ones that sample."""
        for name, average, parameter in zip(self.names, self.ema, self.parameters, strict=True):
            yield name, sharding.whole(average, parameter)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that training needs to go on, by name, one by one: together they may not fit."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            yield f"model/{name}", sharding.whole(parameter.detach())
        for name, average in self.averaged():
            yield f"ema/{name}", average
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for optimiser in self.optimisers:
                for key, value in optimiser.state.get(parameter, {}).items():
                    yield f"optimiser/{key}/{name}", sharding.whole(value)
        for key, value in self.scale.tensors().items() if self.scale is not None else ():
            yield f"{SCALE}{key}", value

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take everything back."""
        for name, parameter, average in zip(self.names, self.parameters, self.ema, strict=True):
            for target, kind in ((sharding.local(parameter.detach()), "model"), (average, "ema")):
                target.copy_(sharding.local(sharding.part_of(tensors[f"{kind}/{name}"], parameter)))
        owners = {id(value): one for one in self.optimisers for value in one.parameters}
        marker, index = "optimiser/", dict(zip(self.names, self.parameters, strict=True))
        for key, value in tensors.items():
            if key.startswith(marker):
                field, name = key.removeprefix(marker).split("/", 1)
                parameter = index[name]
                part = sharding.part_of(value, parameter).to(parameter.device)
                owners[id(parameter)].state[parameter][field] = part
        scale = {key.removeprefix(SCALE): value for key, value in tensors.items() if key.startswith(SCALE)}
        if self.scale is not None and scale:
            self.scale.restore(scale)


def collected(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """What all ranks bring together one by one, in the first rank's main memory and nowhere else."""
    return {name: value.detach().cpu() for name, value in tensors if ranks.first}


class Keeper:
    """Writes states into a folder and says which to go on from.

    On an accelerator the tensors are copied to the CPU and a thread writes them while the steps go on; the
    next save, and the end, wait for it. On CUDA nobody waits for the copies either, since they go to pinned
    memory, which is kept for the next save.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        ranks: Ranks,
        *,
        background: bool = False,
        saved: Callable[[int, str], None] = lambda step, sha256: None,
    ) -> None:
        self.folder, self.config, self.ranks = folder, config, ranks
        self._background, self._saved = background, saved
        self._pinned: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._problem: AtollError | None = None

    def save(self, state: TrainingState) -> None:
        """Write the state beside the old one, then point to it; the old one is whole until the new one is."""
        self.wait()
        here: dict[str, Tensor] = {}
        for name, value in state.tensors():  # every process takes part, the first one keeps
            if self.ranks.first:
                here[name] = self._copied(name, value.detach())
        if not self.ranks.first:
            return
        if not self._background:
            self._write(state.step, here)
            return
        copied = _mark_on_the_queue() if self._pinned else None
        self._thread = threading.Thread(
            target=self._try, args=(state.step, here, copied), name="atoll-keeper"
        )
        self._thread.start()

    def _copied(self, name: str, value: Tensor) -> Tensor:
        """A tensor in main memory; on CUDA as soon as the queue has come to it."""
        if value.device.type != "cuda":
            return value.to("cpu", copy=self._background)
        if name not in self._pinned:
            self._pinned[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return self._pinned[name].copy_(value, non_blocking=True)

    def wait(self) -> None:
        """Until nothing is being written any more; a failed write is told now."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def _try(self, step: int, tensors: dict[str, Tensor], copied: torch.cuda.Event | None) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            self._write(step, tensors)
        except AtollError as error:
            self._problem = error

    def _write(self, step: int, tensors: dict[str, Tensor]) -> None:
        name = f"step-{step:08d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _require_room(self.folder, sum(value.nbytes for value in tensors.values()))
            with replacing(self.folder / name) as beside:
                write_tensors(beside, tensors)
            entry = {"step": step, "file": name, "sha256": file_digest(self.folder / name)}
            kept = [entry, *(old for old in self._entries() if self._is_kept(old, entry))]
            newest = [old for old in kept if not self._is_milestone(old)][: self.config.keep]
            kept = [old for old in kept if old in newest or old is entry or self._is_milestone(old)]
            write_json(self.folder / LATEST, {**entry, "older": kept[1:]})
            self._saved(step, str(entry["sha256"]))
        except OSError as error:
            raise TrainingError(
                f"cannot save to {self.folder} ({error.strerror or error}); the last good state is kept: "
                "make room and run the same command again"
            ) from None
        names = {old["file"] for old in kept}
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in names:
                path.unlink()

    def _entries(self) -> list[dict[str, Any]]:
        """The states that there are, the newest first."""
        if not (self.folder / LATEST).is_file():
            return []
        pointer = read_json(self.folder / LATEST)
        older = pointer.pop("older", [])
        return [pointer, *older]

    @staticmethod
    def _is_kept(old: dict[str, Any], new: dict[str, Any]) -> bool:
        """A state of a later step belongs to a past that training has gone back from."""
        return bool(old["step"] < new["step"])

    def _is_milestone(self, entry: dict[str, Any]) -> bool:
        every = self.config.milestone_every
        return every is not None and entry["step"] % every == 0

    def resume(self, state: TrainingState) -> None:
        """Go on from the newest state that is whole, if there is any."""
        entries = self._entries()
        if not entries:
            return
        entry = self.ranks.from_first(lambda: self._newest_whole(entries))
        state.restore(read_tensors(self.folder / entry["file"]))
        state.step = entry["step"]

    def _newest_whole(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        for entry in entries:
            path = self.folder / entry["file"]
            if path.is_file() and file_digest(path) == entry["sha256"]:
                return entry
        raise CorruptError(
            f"{self.folder / entries[0]['file']} is missing or damaged (sha256 differs); "
            "add --start-over to train from the beginning"
        )

    def decisions(self) -> dict[str, Any]:
        """How earlier steps of this training were taken."""
        path = self.folder / DECISIONS
        return dict(read_json(path)) if path.is_file() else {}

    def remember(self, decisions: dict[str, Any]) -> None:
        """Take later steps in the same way."""
        if self.ranks.first and decisions != self.decisions():
            write_json(self.folder / DECISIONS, decisions)


def _mark_on_the_queue() -> torch.cuda.Event:
    """Something to wait for: all that this device has been asked until now."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _require_room(folder: Path, needed: int) -> None:
    """An OSError before anything is touched if the disk cannot hold this many bytes more."""
    free = shutil.disk_usage(folder).free
    if free < needed + HEADER:
        raise OSError(
            28, f"{os.strerror(28)}: a state takes {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        )
