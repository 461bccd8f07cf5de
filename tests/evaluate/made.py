"""Real samples for tests that need no run: a few pictures, series or latents with what is known of them."""

import torch

from atoll.evaluate.reference import Real
from atoll.runs.records import DataContents


def contents_of(shape, kind="image", dtype="uint8", names=(), mean=127.5, std=127.5, **rest):
    """What is known of samples of this shape."""
    known = {"shape": shape, "kind": kind, "dtype": dtype, "class_names": names, **rest}
    known |= {"mean": (mean,) * shape[0], "std": (std,) * shape[0]}
    return DataContents.model_validate(
        {"group": 64, "rows": 1, "bytes": 1, "parts": (), "features": "pixels", **known}
    )


def pictures(num, shape=(1, 8, 8), seed=0):
    """Pictures of noise."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, *shape), generator=source, dtype=torch.uint8)


def real_of(stored, labels=None, names=(), name="made", **rest):
    """These samples, as if they had been drawn from a run."""
    contents = contents_of(tuple(stored.shape[1:]), names=names, **rest)
    return Real(stored, labels or [None] * len(stored), [None] * len(stored), contents, name)
