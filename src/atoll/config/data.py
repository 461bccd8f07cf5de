"""What samples are and how they are grouped: [data], [encode], [partition], [condition]."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atoll.config.digest import ELSEWHERE, OPERATIONAL, Formerly
from atoll.config.explain import did_you_mean
from atoll.config.section import Section

OWN_FEATURES = ("auto", "pixels", "start")
"""What `encode.features` may be without a foreign model."""


def unknown_features(name: str) -> str | None:
    """What is wrong with a name of features that can be nothing here: models have an owner, or are a folder.

    It is asked of recipes that are to be run. What is published, or was run elsewhere, may name a folder that
    is not here.
    """
    if name in OWN_FEATURES or "/" in name or Path(name).expanduser().exists():
        return None
    near = did_you_mean(name, OWN_FEATURES)
    return f"no features '{name}'; {near}use {', '.join(OWN_FEATURES)}, owner/model or a folder"


class DataConfig(Section):
    """Where samples come from, and what is taken of them."""

    source: Annotated[str, ELSEWHERE] = "fashion-5k"
    """`fashion-5k` (embedded); a path to images, .npz, .npy, idx, .parquet or .tar; or `hub:owner/name`."""
    kind: Literal["auto", "image", "series", "video", "latent"] = "auto"
    """What arrays are; by default names, types, ranks, sizes and values decide, and `prepare` says why."""
    range: tuple[float, float] | None = Field(None, strict=False)
    """Black and white of pictures in arrays; by default 0 to 1, -1 to 1, 0 to 255 or 65535, as they show."""
    layout: Literal["auto", "first", "last"] = "auto"
    """Where an array has its channels; by default last where pictures are usually so, else first."""
    size: int | None = Field(None, ge=1)
    """Resize the short side to this and crop the centre; by default pictures keep their size."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for RGB; by default as the source has them."""
    sample_field: str | None = None
    """The array, column or file ending with the samples; by default, as for the next two, the usual names."""
    label_field: str | None = None
    """The one with the labels."""
    caption_field: str | None = None
    """The one with the captions."""
    subset: str | None = None
    """Hub datasets: which of its configurations."""
    split: str = "train"
    """Hub datasets: which of its splits."""
    duplicates: Literal["keep", "drop"] = "keep"
    """What becomes of samples with equal values; they are counted in any case."""
    holdout: Annotated[float, ELSEWHERE] = Field(0.0, ge=0, lt=1)
    """The share of samples that nobody trains on; which they are depends on the samples alone, so that they
    are the same on every machine and in every run of the same data."""
    max_pixels: int = Field(64_000_000, ge=1)
    """Pictures with more pixels than this are skipped before they are unpacked."""
    max_skipped: Annotated[float, OPERATIONAL] = Field(0.01, ge=0, le=1)
    """Stop when a larger share of the samples than this cannot be read."""
    part: int = Field(8192, ge=1)
    """Samples of one file at rest, which is what an interrupted `prepare` may have to do again."""


class EncodeConfig(Section):
    """What is computed of every sample before it rests; names are the Hub's, or folders."""

    autoencoder: str | None = None
    """A diffusers AutoencoderKL or AutoencoderTiny whose latents are trained on; by default pixels stay."""
    features: Annotated[str, Formerly("pixels")] = "auto"
    """What samples are grouped by: `pixels`; `start`, what the network that experts begin with sees in them,
    which needs no foreign model; a vision model of transformers (`facebook/dinov2-base`); EfficientNet-Lite0
    by folder. `auto` follows the rule that measurements support, today `pixels`, and says so."""
    text: str | None = None
    """A text encoder of transformers for the captions; by default there is none."""
    text_tokens: int = Field(77, ge=1)
    """Longer captions are cut to so many tokens."""
    batch: Annotated[int, OPERATIONAL] = Field(64, ge=1)
    """Samples per forward pass of these models."""
    device: Annotated[str, OPERATIONAL] = "auto"
    """Where the models run: `cpu`, `cuda`, …; by default an accelerator if there is one."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic of these models. `auto`: bfloat16 where there are units for it, else float32; only a named
    one is part of what the data is made from, as only a named one is the same everywhere."""


class PartitionConfig(Section):
    """How samples are grouped into clusters."""

    clusters: int = Field(8, ge=1)
    """Number of clusters, and so of experts. One cluster is the monolith."""
    method: Literal["features", "random", "labels", "file"] = "features"
    """`features`: alike by two-stage k-means; `random`: the baseline; `labels`; `file`: made elsewhere."""
    fine: int = Field(1024, ge=1)
    """Centres of the fine stage; fewer where there are not 20 samples for each."""
    within: Literal["all", "class"] = "all"
    """`class`: group by what the class does not tell, by features without the mean of their class, so that
    experts that are told the class know something besides."""
    balanced: bool = True
    """Give every cluster about the same number of samples."""
    dimensions: int | None = Field(None, ge=1)
    """Principal components of the features to keep; by default 64 of pixels, 48 of a start's, all of a
    vision model's."""
    file: Annotated[str | None, ELSEWHERE] = None
    """For `file`: a .csv, .jsonl or .parquet with columns `cluster` and `name` or `id`."""
    like: Annotated[str | None, ELSEWHERE] = None
    """A finished run whose partition is taken over: its samples stay where they are, new ones join them."""

    @model_validator(mode="after")
    def _file_with_its_method(self) -> Self:
        if (self.method == "file") != (self.file is not None):
            raise ValueError("partition.method 'file' and partition.file go together; give both or neither")
        if self.like is not None and self.method != "features":
            raise ValueError("partition.like brings its own method; leave out partition.method")
        return self


class ConditionConfig(Section):
    """What experts, router and student are told about a sample."""

    kind: Literal["none", "class", "text"] = "none"
    """`class` uses the labels of the source, `text` the states of its captions (see encode.text)."""
    dropout: float = Field(0.1, ge=0, le=1)
    """How often training hides the condition, so that there is an unconditional model to guide against."""
