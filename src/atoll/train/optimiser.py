"""Optimisers: fused AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from atoll.config import TrainConfig
from atoll.train import sharding

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Kingma & Ba's, and DiT's."""


class Optimiser(Protocol):
    """What the loop needs of one."""

    parameters: Sequence[Tensor]
    state: dict[Tensor, dict[str, Tensor]]
    """What it remembers of each parameter, by name."""

    def step(self, lr: float, skipped: Tensor | None = None) -> None:
        """Move the parameters along their gradients, but not where `skipped` is 1."""


class AdamW:
    """AdamW (Loshchilov & Hutter 2019) in one kernel for all parameters.

    The same kernel as torch.optim.AdamW(fused=True), of which a test holds it to be bit-equal; called
    directly, because building one of those loads the compiler, two seconds of every job.
    """

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self.parameters = parameters
        self.weight_decay = weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    def _remembered(self, parameter: Tensor) -> dict[str, Tensor]:
        moments = self.state[parameter]
        if not moments:
            moments["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments["exp_avg"] = torch.zeros_like(parameter)
            moments["exp_avg_sq"] = torch.zeros_like(parameter)
        return moments

    @torch.no_grad()
    def step(self, lr: float, skipped: Tensor | None = None) -> None:
        """Move the parameters along their gradients; whether it is skipped, the device decides."""
        moved = [parameter for parameter in self.parameters if parameter.grad is not None]
        remembered = [self._remembered(parameter) for parameter in moved]
        counts = [moments["step"] for moments in remembered]
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(
            [sharding.local(parameter) for parameter in moved],
            [sharding.local(parameter.grad) for parameter in moved if parameter.grad is not None],
            [sharding.local(moments["exp_avg"]) for moments in remembered],
            [sharding.local(moments["exp_avg_sq"]) for moments in remembered],
            [],
            counts,
            lr=lr,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            found_inf=skipped,
        )
        if skipped is not None:
            torch._foreach_sub_(counts, [skipped] * len(counts))


class Muon:
    """Muon (Jordan et al. 2024), torch's own; updates as large as AdamW's, so that one lr serves both."""

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self.parameters = parameters
        self._muon: torch.optim.Optimizer = torch.optim.Muon(
            list(parameters), weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self.state: dict[Tensor, dict[str, Tensor]] = self._muon.state

    def step(self, lr: float, skipped: Tensor | None = None) -> None:
        """Move the parameters along their orthogonalised gradients; with a loss scale this waits."""
        if skipped is not None and bool(skipped):
            return
        if any(sharding.is_spread(parameter) for parameter in self.parameters):
            self._step_together(lr)
            return
        for group in self._muon.param_groups:
            group["lr"] = lr
        self._muon.step()

    @torch.no_grad()
    def _step_together(self, lr: float) -> None:
        """The same step for matrices of which every rank has some rows.

        torch's would run, but sum parts of products in bfloat16 between ranks: after a few steps weights are
        a fifth of a step off. Momentum is a matter of single entries; what is orthogonalised is gathered.
        """
        from torch.optim import _muon  # noqa: PLC0415 - older versions of torch have none

        group = self._muon.param_groups[0]
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            own, gradient = sharding.local(parameter), sharding.local(parameter.grad)
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = sharding.local(state["momentum_buffer"])
            momentum.lerp_(gradient, 1 - group["momentum"])
            direction = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
            update = _muon._zeropower_via_newtonschulz(
                sharding.whole(direction, parameter),
                group["ns_coefficients"],
                group["ns_steps"],
                group["eps"],
            )
            own.mul_(1 - lr * group["weight_decay"])
            own.add_(
                sharding.local(sharding.part_of(update, parameter)),
                alpha=-_muon._adjust_lr(lr, group["adjust_lr_fn"], parameter.shape),
            )


def build(model: nn.Module, config: TrainConfig) -> list[Optimiser]:
    """The optimisers of a network; every parameter that is trained belongs to exactly one."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    muon = config.optimiser == "muon"
    matrices = [value for name, value in named.items() if muon and _is_matrix(name, value)]
    chosen = {id(value) for value in matrices}
    rest = [value for value in named.values() if id(value) not in chosen]
    optimisers: list[Optimiser] = [AdamW(rest, config.weight_decay)]
    if matrices:
        optimisers.append(Muon(matrices, config.weight_decay))
    return optimisers


def _is_matrix(name: str, value: Tensor) -> bool:
    """Hidden matrices: those of the blocks, except the layers and tables that modulate."""
    return value.ndim == 2 and ".blocks." in f".{name}" and ".modulation." not in name
