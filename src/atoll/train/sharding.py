"""How a network lies over the ranks of a job: as it is, a copy in each, or a share of it in each."""

import contextlib
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atoll.config import TrainConfig
from atoll.models import costs
from atoll.train.ranks import Ranks


def spread(model: nn.Module, config: TrainConfig, ranks: Ranks, device: torch.device) -> nn.Module:
    """The network as these ranks train it: as it is, a copy in each process, or a share of it in each."""
    if ranks.size == 1:
        return model
    if config.parallel == "fsdp" or (config.parallel == "auto" and not _fits(model, device)):
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - a second that most jobs need not pay

        trunk = getattr(model, "trunk", None)
        for block in trunk.blocks if trunk is not None else []:
            fully_shard(block)
        fully_shard(model)
        return model
    # Gradients live in the buckets that are exchanged; buffers are constants that nobody need send around.
    return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)


def _fits(model: nn.Module, device: torch.device) -> bool:
    """Whether a whole copy leaves a third of the device to activations."""
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    sizes = (
        value.numel() * (costs.TRAINED if value.requires_grad else costs.FULL) for value in model.parameters()
    )
    return sum(sizes) < total * 2 / 3


def synchronise(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Exchange gradients after this part of the batch only if it is the last one."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if hasattr(
        model, "set_requires_gradient_sync"
    ):  # FSDP2's; it adds up whole gradients until the last part
        sharded = cast(Any, model)
        sharded.set_requires_gradient_sync(last)
        sharded.set_is_last_backward(last)
    return contextlib.nullcontext()


def release(model: nn.Module) -> None:
    """Let go of whole weights that FSDP2 keeps for a backward pass that will not come."""
    if hasattr(model, "set_requires_gradient_sync"):
        cast(Any, model).reshard()


def is_spread(value: Tensor | None) -> bool:
    """Whether this is a DTensor, without importing what that is."""
    return hasattr(value, "placements")


def local(value: Tensor) -> Tensor:
    """The part of a tensor that is here."""
    return cast(Tensor, cast(Any, value).to_local()) if is_spread(value) else value


def whole(value: Tensor, like: Tensor | None = None) -> Tensor:
    """All of a tensor; of a local part if `like` says how it is spread. All processes must ask together."""
    if is_spread(value):
        return cast(Tensor, cast(Any, value).full_tensor())
    if is_spread(like) and value.ndim:
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - see spread

        layout = cast(Any, like)
        return DTensor.from_local(
            value, layout.device_mesh, layout.placements, shape=layout.shape, stride=layout.stride()
        ).full_tensor()
    return value


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """The inverse of `whole`: of what each rank has whole, the part that belongs here, spread as `like`."""
    if is_spread(like) and value.ndim:
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - see spread

        layout = cast(Any, like)
        placed = value.to(like.device)
        return distribute_tensor(placed, layout.device_mesh, layout.placements, src_data_rank=None)
    return value
