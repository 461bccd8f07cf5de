"""A canary: a state that is not what the steps lead to, by which auditors are audited.

`python -m atoll.net.verification.spoil BEFORE AFTER SPOILT SEED`: an update of the right length in every
tensor, a third of it in a direction of chance. Whoever does not replay cannot tell it from a true one.
"""

import math
import sys
from pathlib import Path

import torch

from atoll.errors import AtollError
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.net.verification.updates import Tensors, kind_of

SHARE = 0.6
"""The length of what is of chance over the length of the update: as far off as half the steps."""


def spoilt(before: Tensors, after: Tensors, seed: int) -> dict[str, torch.Tensor]:
    """The state after an update of the same length that is partly noise."""
    source = torch.Generator().manual_seed(seed)
    state = {}
    for name in sorted(after):
        value = after[name]
        if kind_of(name) not in ("model", "ema") or name not in before:
            state[name] = value.clone()
            continue
        update = value.double() - before[name].double()
        noise = torch.randn(update.shape, generator=source, dtype=torch.float64)
        noise *= update.norm() / noise.norm().clamp(min=1e-30)
        mixed = math.sqrt(1 - SHARE**2) * update + SHARE * noise
        state[name] = (before[name].double() + mixed).to(value.dtype)
    return state


def main(arguments: list[str]) -> int:
    """Read two states, write the spoilt one."""
    try:
        before, after, target, seed = arguments
        state = spoilt(read_tensors(Path(before)), read_tensors(Path(after)), int(seed))
        write_tensors(Path(target), state)
    except (AtollError, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
