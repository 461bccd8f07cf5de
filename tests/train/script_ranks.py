"""One rank: train expert 0 of the given run, as torchrun's environment says, and count what is exchanged."""

import functools
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from atoll.runs import Run, write_json
from atoll.train import jobs

NAMES = ("reduce_scatter_single", "reduce_scatter_tensor")
"""By which gradients are exchanged where each rank has a share of the network, in torch's own versions."""


def counted(counts: list[int]) -> None:
    """Count sums of gradients over ranks; one of the names may call the other."""
    within = [False]
    for name in NAMES:
        original = getattr(dist, name, None)
        if original is None:
            continue

        @functools.wraps(original)
        def exchange(*arguments, original=original, **named):
            if within[0]:
                return original(*arguments, **named)
            counts[0], within[0] = counts[0] + 1, True
            try:
                return original(*arguments, **named)
            finally:
                within[0] = False

        setattr(dist, name, exchange)


if __name__ == "__main__":
    torch.set_num_threads(1)
    counts = [0]
    counted(counts)
    folder = Path(sys.argv[1])
    jobs.expert(Run.open(folder), 0)
    write_json(folder / f"exchanges-{os.environ.get('RANK', '0')}.json", {"sums": counts[0]})
