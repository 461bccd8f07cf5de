"""What is known of a run's data and networks before it has begun."""

from typing import NamedTuple

from atoll.config import ExpertConfig, Facts, NetworkConfig, RouterConfig, RunConfig, patches
from atoll.errors import ConfigError
from atoll.models.costs import HALF, Network

UNKNOWN = Facts()
"""Before anybody has looked at the samples."""


class About(NamedTuple):
    """What sums need to know of the data."""

    shape: tuple[int, ...]
    samples: int | None
    classes: int
    text: int
    """Width of the states of a text."""
    bytes_per_value: int


def about_data(config: RunConfig, facts: Facts) -> About:
    """What is known of the data: measured where they are, else said in [plan], else read off [data]."""
    shape = facts.shape or config.plan.shape or _shape_of(config)
    if shape is None:
        raise ConfigError(
            "the shape of the samples is not known yet; set plan.shape, or `atoll prepare` first"
        )
    latent = config.encode.autoencoder is not None or config.data.kind == "latent"
    return About(
        shape=tuple(shape),
        samples=facts.rows or config.plan.samples,
        classes=facts.classes or config.plan.classes,
        text=facts.text or config.plan.text_width,
        bytes_per_value=HALF if latent else 1,
    )


def _shape_of(config: RunConfig) -> tuple[int, ...] | None:
    if config.data.source == "fashion-5k" and config.encode.autoencoder is None:
        side = config.data.size or 28
        return (config.data.channels or 1, side, side)
    if config.data.size is None:
        return None
    if (
        config.encode.autoencoder is not None
    ):  # Stable Diffusion's and its kin: 4 channels, an eighth of a side
        return (4, config.data.size // 8, config.data.size // 8)
    return (config.data.channels or 3, config.data.size, config.data.size)


def network_of(settings: NetworkConfig, config: RunConfig, about: About) -> Network:
    """The network of these settings in this run."""
    shape = about.shape
    if not patches.fits(settings.patch_of(shape), shape):
        raise ConfigError(patches.misfit(settings.patch_of(shape), shape, "patch"))
    router = isinstance(settings, RouterConfig)
    kind = "none" if isinstance(settings, RouterConfig) and settings.blind else config.condition.kind
    return Network(
        settings,
        shape,
        kind,
        about.classes,
        about.text if kind == "text" else 0,
        config.encode.text_tokens if kind == "text" else 0,
        config.partition.clusters if router else 0,
        config.partition.clusters * settings.prototypes if isinstance(settings, RouterConfig) else 0,
        adapter=settings.adapter if isinstance(settings, ExpertConfig) else None,
    )
