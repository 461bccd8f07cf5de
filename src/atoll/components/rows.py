"""From samples to router rows: means of groups of many different samples, and nothing of any single one."""

import secrets

import torch
from torch import Tensor

from atoll.config import ComponentConfig
from atoll.flow import draws, prototypes
from atoll.models.prototypes import Rows
from atoll.train import prototypes as training
from atoll.train.prototypes import LEAST as LEAST


def of_samples(
    x_0: Tensor, label: Tensor | None, classes: int, config: ComponentConfig, seed: int = 0
) -> Rows:
    """Prototypes of samples as networks see them, (n, *sample), noisy where privacy is asked for."""
    if config.epsilon is None:
        return training.of_samples(x_0, label, classes, config.prototypes, seed)
    return _private(*training.different(x_0, label), classes, config)


def _private(x: Tensor, label: Tensor | None, classes: int, config: ComponentConfig) -> Rows:
    """One row for each class, or for all: whose group a sample is in depends on no other sample."""
    group = torch.zeros(len(x), dtype=torch.long)
    if classes and label is not None:
        x, group = x[label >= 0], label[label >= 0]
    assert config.epsilon is not None
    random = draws.generator(secrets.randbits(62), "component/noise")  # whoever knew the seed could undo it
    budget = config.epsilon, config.delta
    means, variances, sizes = prototypes.private_moments(x, group, max(1, classes), budget, random)
    return Rows(means, variances, sizes, torch.diag(sizes) if classes else None)
