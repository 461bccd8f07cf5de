"""Samples that nobody trains on: which they are, and all that is known of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.data.store import Batch, Reader
from atoll.runs import Run, Stage


def is_held_out(ids: NDArray[np.uint8], share: float) -> NDArray[np.bool_]:
    """Which of these ids (rows, 32) are held out: those whose last eight bytes are a number below the share.

    An id is a hash of the sample, so that the answer is the same wherever the sample is, equal samples are
    held out together, and a larger share holds out the same and more. Draws of the partition take the first
    eight bytes: the two know nothing of each other.
    """
    tickets = np.ascontiguousarray(ids[:, -8:]).view(">u8")[:, 0]
    return tickets < np.uint64(int(share * 2**64))


def read(clusters: Sequence[Stage], most: int | None = None) -> Batch | None:
    """What is held out of these clusters, or the first of it, each cluster with its share; None if nothing.

    Samples, labels, captions' states, and the cluster that each would belong to.
    """
    reader = Reader(clusters, 1, 0, held_out=True)
    return reader.first(most) if reader.rows else None


def of_run(run: Run, most: int | None = None) -> Batch | None:
    """What is held out of a whole run."""
    return read([run.cluster(index) for index in range(run.config.partition.clusters)], most)
