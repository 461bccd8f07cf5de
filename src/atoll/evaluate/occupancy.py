"""Which clusters and classes samples fall into, against the data: what a distance may hide."""

from typing import Any

import torch
from torch import Tensor

from atoll.evaluate import distances
from atoll.evaluate.grouped import features_of, rule_of
from atoll.evaluate.intervals import bootstrap
from atoll.runs import Run
from atoll.runs.records import SampleFormat


def clusters_of(run: Run, x_0: Tensor, contents: SampleFormat) -> Tensor | None:
    """The cluster that the partition's own rule gives each sample; None where only real ones have one."""
    rule = rule_of(run)
    if rule is None:
        return None
    return torch.from_numpy(rule.assign_features(features_of(run, x_0, contents)).cluster)


def shares(members: Tensor, real: Tensor, resamples: int) -> dict[str, Any]:
    """Shares of the groups among samples and data, and the divergence of the two with its interval."""
    groups = len(real)
    counts = torch.bincount(members, minlength=groups).double()

    divergence = bootstrap(len(members), lambda chosen: apart(members[chosen], real), resamples)
    return {
        "samples": (counts / counts.sum()).tolist(),
        "data": (real.double() / real.sum()).tolist(),
        "divergence": divergence._replace(low=max(0.0, divergence.low)).facts(),
    }


def apart(members: Tensor, real: Tensor) -> float:
    """The divergence of the groups of some samples from those of the data."""
    return distances.divergence(torch.bincount(members, minlength=len(real)), real)
