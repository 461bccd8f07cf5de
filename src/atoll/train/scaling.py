"""Loss scaling: float16 has no room for small gradients, so that losses are multiplied before backward.

The rules are those of torch.amp.GradScaler, after Micikevicius et al. (arXiv 1710.03740, §3.2), and so is
the kernel. But GradScaler waits for the device in every step to learn whether to take it; here the device
decides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""GradScaler's: the first scale; its factors after so many good steps, and after a bad one."""
LEAST = 1.0
"""Below this the scale is not to blame for gradients that are not finite."""


class LossScale:
    """The factor of the loss, on its device."""

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), INITIAL, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        """Steps since the scale last changed."""

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide by the factor, in place; it is a power of two, so that nothing is rounded."""
        torch._foreach_mul_(list(gradients), self.scale.reciprocal())

    def judge(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """From the norm of all gradients: 1 if this step must be skipped, else 0; and the norm to report.

        Skipped steps are part of the game and report zero, until the scale is so small that it cannot be
        their cause. Adapts the scale for the next step.
        """
        skipped = norm.isfinite().logical_not().float()
        torch._amp_update_scale_(self.scale, self.good_steps, skipped, GROWTH, BACKOFF, INTERVAL)
        forgiven = skipped.bool() & (self.scale >= LEAST)
        return skipped, torch.where(forgiven, 0.0, norm)

    def tensors(self) -> dict[str, Tensor]:
        """What training needs to go on."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take it back."""
        for name, target in self.tensors().items():
            target.copy_(tensors[name])
