"""What the network that experts begin with sees in every sample: features to group samples by.

They cost half a forward pass a sample, need no foreign model, and exist for every kind of sample.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from atoll import devices, threads
from atoll.data.parts import Parts, features_path, remove_partial
from atoll.data.store import open_parquet
from atoll.data.values import standardise
from atoll.models import checkpoint
from atoll.models.dit import product
from atoll.models.seen import TIME, Seen
from atoll.runs import Run, Stage, inputs, replacing
from atoll.runs.locks import alone
from atoll.runs.seen import FeaturesContents

ROWS = 64
"""Samples of a forward pass."""


def features(run: Run) -> Stage[FeaturesContents]:
    """Write the features of every part of `data/`; what is there of an interrupted call stays."""
    stage, made_from = run.features, inputs.features_from(run)
    with alone(stage.path):
        if not stage.begin(made_from):
            return stage
        remove_partial(stage.path)
        begins, device = inputs.beginning(run, 0), devices.best()
        assert begins is not None
        for name in (checkpoint.WEIGHTS, checkpoint.CONFIG):
            begins.verify(name)
        network = Seen.load(begins.path, run.config.seed, device)
        parts, width = Parts(run.data), 0
        arithmetic = devices.arithmetic(run.config.encode.precision, device)
        with threads.limited(product(network.model, ROWS)), devices.autocast(arithmetic, device):
            for name in parts.names:
                file = stage.path / features_path(Path(name)).name
                if not file.is_file():
                    _write(file, np.concatenate(list(_rows(parts, name, network, device))))
                width = np.load(file, mmap_mode="r", allow_pickle=False).shape[1]
        files = [features_path(Path(name)).name for name in parts.names]
        rows = sum(parts.rows_of.values())
        contents = FeaturesContents(rows=rows, width=width, block=network.block, time=TIME)
        stage.finish(made_from, files, contents)
    return stage


def _rows(parts: Parts, name: str, network: Seen, device: torch.device) -> Iterator[NDArray[np.float32]]:
    """The features of a part, batch by batch, in the order of its samples."""
    contents, file_name = parts.contents, parts.verify(name).name
    with open_parquet(parts.stage, file_name) as file:
        for batch in file.iter_batches(ROWS, columns=["sample"], use_threads=False):
            raw = b"".join(batch.column(0).to_pylist())
            stored = np.frombuffer(raw, contents.dtype).reshape(-1, *contents.shape)
            values = standardise(torch.from_numpy(stored.astype(np.float32)), contents)
            yield network(values.to(device)).cpu().numpy()


def _write(path: Path, rows: NDArray[np.float32]) -> None:
    with replacing(path) as beside, beside.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
