"""Samples that somebody brings of data that is elsewhere, as the networks of a run see them."""

import itertools

import numpy as np
import torch

from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.data.store import Batch
from atoll.data.values import standardise
from atoll.errors import ConfigError, DataError
from atoll.runs import Run


def read(run: Run, number: int, source: str, most: int) -> Batch:
    """The first samples of a source, as samples of a part."""
    contents = run.partition.contents
    if run.config.condition.kind == "text" or contents.autoencoder is not None:
        raise ConfigError("samples can be brought to runs without captions and autoencoders alone")
    opened = open_source(run.config.data.model_copy(update={"source": source}))
    items = (item for piece in range(opened.pieces) for item in opened.read(piece))
    samples = list(itertools.islice((item for item in items if isinstance(item, Sample)), most))
    shape = tuple(contents.shape)
    if not samples or any(item.values.shape != shape for item in samples):
        raise DataError(
            f"{source} holds no samples {list(shape)} (channels, *grid); give some of part {number}"
        )
    x_0 = standardise(torch.from_numpy(np.stack([item.values for item in samples])), contents)
    names = contents.class_names
    labels = [names.index(item.label) if item.label in names else -1 for item in samples]
    return Batch(x_0, torch.tensor(labels), torch.full((len(samples),), number))
