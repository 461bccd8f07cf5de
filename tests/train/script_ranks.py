"""One rank: train expert 0 of the given run, as torchrun's environment says."""

import sys
from pathlib import Path

import torch

from atoll.runs import Run
from atoll.train import jobs

if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs.expert(Run.open(Path(sys.argv[1])), 0)
