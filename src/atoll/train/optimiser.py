"""Optimisers: fused AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""

import torch
from torch import Tensor, nn

from atoll.config import TrainConfig

BETAS = (0.9, 0.999)


def build(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """The optimisers of a network; every parameter belongs to exactly one."""
    named = dict(model.named_parameters())
    matrices = {
        name for name, value in named.items() if config.optimiser == "muon" and _is_matrix(name, value)
    }
    rest = [value for name, value in named.items() if name not in matrices]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=config.lr, betas=BETAS, weight_decay=config.weight_decay, fused=True)
    ]
    if matrices:
        # Updates as large as AdamW's, so that one learning rate serves both (Moonshot's scaling).
        found.append(
            torch.optim.Muon(
                [named[name] for name in named if name in matrices],
                lr=config.lr,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return found


def _is_matrix(name: str, value: Tensor) -> bool:
    """Hidden matrices: those of the blocks, except the layers and tables that modulate."""
    return value.ndim == 2 and ".blocks." in f".{name}" and ".modulation." not in name
