"""An expert that does not predict velocities, shrunk where its errors grow towards what two moments tell.

Read off as a velocity, errors of a noise prediction are divided by 1 - t. How much of it is left at each time
was measured on real samples when it was trained, and lies beside its weights.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.errors import CorruptError
from atoll.flow import gaussian, shrinkage
from atoll.flow.gaussian import Gaussian
from atoll.models import checkpoint
from atoll.models.conditions import Condition

FILE = "moments.safetensors"
"""Beside the weights."""
NAMES = (*Gaussian._fields, "times", "shares")


class Shrunk(nn.Module):
    """g + w(t) (v - g), with the velocity g of a Gaussian that has the moments of the expert's samples."""

    mean: Tensor
    basis: Tensor
    variances: Tensor
    rest: Tensor
    times: Tensor
    shares: Tensor

    def __init__(self, expert: nn.Module, known: Gaussian, times: Tensor, shares: Tensor) -> None:
        """`shares` are w at `times`, which rise."""
        super().__init__()
        self.expert = expert
        for name, value in {**known._asdict(), "times": times, "shares": shares}.items():
            self.register_buffer(name, value)

    def forward(
        self, x_t: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"], condition: Condition = None
    ) -> Float[Tensor, "batch *sample"]:
        """The velocity, in float32 or better until it is handed over."""
        exact = torch.promote_types(x_t.dtype, torch.float32)
        now = t.to(exact)
        shares = shrinkage.between(now, self.times.to(exact), self.shares.to(exact))
        known = Gaussian(self.mean, self.basis, self.variances, self.rest)
        base = gaussian.velocity(known, x_t.to(exact), now)
        own = self.expert(x_t, t, condition)
        return shrinkage.shrunk(own.to(exact), base, shares).to(own.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """What lies beside the weights."""
        return {name: getattr(self, name).cpu().contiguous() for name in NAMES}


def read(path: Path, expert: nn.Module, device: torch.device) -> Shrunk:
    """An expert with what was measured of it."""
    tensors = checkpoint.read_tensors(path)
    if tensors.keys() != set(NAMES) or not all(value.isfinite().all() for value in tensors.values()):
        raise CorruptError(
            f"{path} is not what was measured of an expert; delete its folder and train it again"
        )
    rank, times = len(tensors["variances"]), len(tensors["times"])
    fits = tensors["basis"].shape == (rank, *tensors["mean"].shape) and len(tensors["shares"]) == times > 1
    if not fits:
        raise CorruptError(f"{path} is damaged; delete its folder and train it again")
    ready = {name: value.to(device) for name, value in tensors.items()}
    known = Gaussian(*(ready[name] for name in Gaussian._fields))
    return Shrunk(expert, known, ready["times"], ready["shares"])
