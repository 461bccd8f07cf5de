"""The processes that train one expert together: one, or one per device of a machine under torchrun.

All of them see the whole batch and all random numbers and take their share of the rows, so that the result
is that of one process. Experts never meet: this is communication within an island, not between islands.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atoll.config import TrainConfig
from atoll.errors import AtollError

T = TypeVar("T")

BYTES_PER_PARAMETER = 20
"""Weights, their average, gradients and two moments, in float32."""


@dataclass(frozen=True)
class Island:
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's share of the rows of a batch."""
        return slice(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def from_first(self, action: Callable[[], T]) -> T:
        """What the first process finds, any JSON value, for all; its mistake is everybody's."""
        if self.size == 1:
            return action()
        if not self.first:
            answer = json.loads(_broadcast(""))
            if "mistake" in answer:
                raise AtollError(answer["mistake"])
            return cast(T, answer["found"])
        try:
            found = action()
        except AtollError as error:
            _broadcast(json.dumps({"mistake": str(error)}))
            raise
        _broadcast(json.dumps({"found": found}))
        return found

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is true in any process."""
        if self.size == 1:
            return flag
        found = torch.tensor(float(flag), device=device)
        dist.all_reduce(found)
        return bool(found.item())

    def gather(self, rows: Tensor, batch: int) -> Tensor:
        """The rows of all processes, in the order of the batch."""
        if self.size == 1:
            return rows
        whole = torch.zeros(batch, *rows.shape[1:], device=rows.device, dtype=rows.dtype)
        whole[self.rows(batch)] = rows
        dist.all_reduce(whole)
        return whole


def _broadcast(text: str) -> str:
    """The first process's text, for all: as bytes in a tensor, since torch would send an object as code."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    size = torch.tensor(len(raw), device=device)
    dist.broadcast(size, 0)
    if dist.get_rank() != 0:
        raw = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    dist.broadcast(raw, 0)
    return bytes(raw.tolist()).decode()


@contextlib.contextmanager
def joined() -> Iterator[Island]:
    """The island that torchrun's environment describes; one process alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Island()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Island(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def spread(model: nn.Module, config: TrainConfig, island: Island, device: torch.device) -> nn.Module:
    """The network as this island trains it: as it is, a copy in each process, or a share of it in each."""
    if island.size == 1:
        return model
    if config.parallel == "fsdp" or (config.parallel == "auto" and not _fits(model, device)):
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - a second that most jobs need not pay

        trunk = getattr(model, "trunk", None)
        for block in trunk.blocks if trunk is not None else []:
            fully_shard(block)
        fully_shard(model)
        return model
    return DistributedDataParallel(model)


def _fits(model: nn.Module, device: torch.device) -> bool:
    """Whether a whole copy leaves a third of the device to activations."""
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return sum(value.numel() for value in model.parameters()) * BYTES_PER_PARAMETER < total * 2 / 3


def synchronise(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Exchange gradients after this part of the batch only if it is the last one."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def _is_spread(value: Tensor | None) -> bool:
    """Whether this is a DTensor, without importing what that is."""
    return hasattr(value, "placements")


def local(value: Tensor) -> Tensor:
    """The part of a tensor that is here."""
    return cast(Tensor, cast(Any, value).to_local()) if _is_spread(value) else value


def whole(value: Tensor, like: Tensor | None = None) -> Tensor:
    """All of a tensor; of a local part if `like` says how it is spread. All processes must ask together."""
    if _is_spread(value):
        return cast(Tensor, cast(Any, value).full_tensor())
    if _is_spread(like) and value.ndim:
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - see spread

        how = cast(Any, like)
        return DTensor.from_local(
            value, how.device_mesh, how.placements, shape=how.shape, stride=how.stride()
        ).full_tensor()
    return value


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """The inverse of `whole`: the part that belongs here, spread as `like` is."""
    if _is_spread(like) and value.ndim:
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - see spread

        how = cast(Any, like)
        return distribute_tensor(value.to(like.device), how.device_mesh, how.placements)
    return value
