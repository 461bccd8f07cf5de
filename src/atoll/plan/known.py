"""What is known of a run's data and networks before it has begun."""

from collections.abc import Mapping
from typing import Any

from atoll.config import NetworkConfig, RouterConfig, RunConfig, patches
from atoll.errors import ConfigError
from atoll.models.costs import HALF, Network


def about_data(config: RunConfig, contents: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the data: measured where they are, else said in [plan], else read off [data]."""
    shape = contents.get("shape") or config.plan.shape or _shape_of(config)
    if shape is None:
        raise ConfigError(
            "the shape of the samples is not known yet; set plan.shape, or `atoll prepare` first"
        )
    text = contents.get("text") or {}
    latent = config.encode.autoencoder is not None or config.data.kind == "latent"
    return {
        "shape": tuple(shape),
        "samples": contents.get("rows") or config.plan.samples,
        "classes": len(contents.get("class_names") or ()) or config.plan.classes,
        "text": text.get("width", config.plan.text_width),
        "bytes_per_value": HALF if latent else 1,
    }


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


def network_of(settings: NetworkConfig, config: RunConfig, about: Mapping[str, Any]) -> Network:
    """The network of these settings in this run."""
    shape = about["shape"]
    if not patches.fits(settings.patch_of(shape), shape):
        raise ConfigError(patches.misfit(settings.patch_of(shape), shape, "patch"))
    router = isinstance(settings, RouterConfig)
    kind = "none" if isinstance(settings, RouterConfig) and settings.blind else config.condition.kind
    return Network(
        settings,
        shape,
        kind,
        about["classes"],
        about["text"] if kind == "text" else 0,
        config.encode.text_tokens if kind == "text" else 0,
        config.partition.clusters if router else 0,
    )
