"""The processes that train one expert together: one, or one per device of a machine under torchrun.

All of them see the whole batch and all random numbers and take their share of the rows, so that the result
is that of one process. Experts never meet: this is communication within one job, not between jobs.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from atoll import devices
from atoll.errors import AtollError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
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
            value = action()
        except AtollError as error:
            _broadcast(json.dumps({"mistake": str(error)}))
            raise
        _broadcast(json.dumps({"found": value}))
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is true in any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.full((), float(flag), device=device)).item())

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, rows: Tensor, batch: int) -> Tensor:
        """The rows of all processes, in the order of the batch."""
        if self.size == 1:
            return rows
        whole = torch.zeros(batch, *rows.shape[1:], device=rows.device, dtype=rows.dtype)
        whole[self.rows(batch)] = rows
        return self.sum(whole)


def _broadcast(text: str) -> str:
    """The first process's text, for all: as bytes in a tensor, since torch would send an object as code."""
    device = devices.best() if torch.cuda.is_available() else torch.device("cpu")  # as NCCL and gloo demand
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    size = torch.tensor(len(raw), device=device)
    dist.broadcast(size, 0)
    if dist.get_rank() != 0:
        raw = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    dist.broadcast(raw, 0)
    return bytes(raw.tolist()).decode()


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun's environment describes; one process alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
