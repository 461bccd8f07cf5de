"""The rule of a partition and the features that it takes, of samples that networks made."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import devices
from atoll.data import rules
from atoll.data.features import open_features, to_rest
from atoll.errors import DataError
from atoll.evaluate.distances import in_parts
from atoll.evaluate.reference import as_seen
from atoll.models.seen import Seen
from atoll.runs import Run, inputs
from atoll.runs.records import SampleFormat

BATCH = 500


def rule_of(run: Run) -> rules.FeatureRule | None:
    """The rule by which samples were clustered, if others than training samples can be told by it."""
    try:
        rule = rules.load_rule(run.partition)
    except DataError:
        return None
    if run.config.grouped_by_start and not _network_is_here(run):
        return None
    return rule if isinstance(rule, rules.FeatureRule) else None


def features_of(run: Run, x_0: Tensor, contents: SampleFormat) -> NDArray[Any]:
    """Features of samples as networks make them, as that rule takes them."""
    if run.config.grouped_by_start:
        begins, device = inputs.beginning(run, 0), devices.best()
        assert begins is not None
        network = Seen.load(begins.path, run.config.seed, device)
        return np.concatenate([network(part.to(device)).cpu().numpy() for part in in_parts(x_0, BATCH)])
    see, rows = open_features(run.config.encode, contents.kind), []
    for part in in_parts(x_0, BATCH):
        values = as_seen(part, contents).cpu()
        rows.append(to_rest(see(values), values))
    return np.concatenate(rows)


def _network_is_here(run: Run) -> bool:
    begins = inputs.beginning(run, 0)
    return begins is not None and begins.here
