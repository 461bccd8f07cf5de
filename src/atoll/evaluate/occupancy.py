"""Which clusters and classes samples fall into, against the data: what a distance may hide."""

from typing import Any

import torch
from torch import Tensor

from atoll.data import rules
from atoll.data.features import open_features, to_rest
from atoll.errors import DataError
from atoll.evaluate import distances
from atoll.evaluate.intervals import bootstrap
from atoll.evaluate.reference import as_seen
from atoll.runs import Run
from atoll.runs.records import SampleFormat

BATCH = 500


def clusters_of(run: Run, x_0: Tensor, contents: SampleFormat) -> Tensor | None:
    """The cluster that the partition's own rule gives each sample; None where only real ones have one."""
    try:
        rule = rules.load_rule(run.partition)
    except DataError:
        return None
    if not isinstance(rule, rules.FeatureRule):
        return None
    see = open_features(run.config.encode, contents.kind)
    rows = []
    for part in distances.in_parts(x_0, BATCH):
        values = as_seen(part, contents).cpu()
        rows.append(torch.from_numpy(to_rest(see(values), values)))
    return torch.from_numpy(rule.assign_features(torch.cat(rows).numpy()).cluster)


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
