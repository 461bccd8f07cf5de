"""The size and kind of a network, and what it predicts."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from atoll.config import patches
from atoll.config.section import Section

SIZES: dict[str, dict[str, int]] = {
    "S": {"width": 384, "depth": 12, "heads": 6},
    "B": {"width": 768, "depth": 12, "heads": 12},
    "L": {"width": 1024, "depth": 24, "heads": 16},
    "XL": {"width": 1152, "depth": 28, "heads": 16},
}
"""The sizes of DiT (Peebles & Xie 2022, table 1)."""


class NetworkConfig(Section):
    """The size and kind of a transformer."""

    size: str | None = Field(None, pattern=r"^(S|B|L|XL)/[1-9][0-9]*$")
    """A size of the papers with the patch for images, such as `XL/2`; any key given beside it wins."""
    width: int = Field(384, ge=8)
    """Channels of a token."""
    depth: int = Field(12, ge=1)
    """Number of blocks."""
    heads: int = Field(6, ge=1)
    """Attention heads; they divide the width."""
    patch: tuple[int, ...] | None = Field(None, min_length=1, max_length=3, strict=False)
    """Samples per token along each axis of the grid, as [2, 2] for images; by default 2 along each axis of
    space, 1 along the time of videos, a 64th of a series, or the nearest to it that divides."""
    mlp: float = Field(4.0, gt=0)
    """Width of the hidden layer, in token widths."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """`gelu-tanh` is DiT's approximation, for weights from there; on a CPU it costs four times as much."""
    modulation: Literal["block", "shared"] = "block"
    """Layers that turn the time into scales, shifts and gates: one per block (AdaLN-Zero), or one shared by
    all with a small table per block (AdaLN-Single), which saves about a third of the parameters."""
    text: Literal["cross", "cross-mlp", "pooled"] = "cross"
    """How a text is told: by cross-attention on the states of its tokens, which one layer or, as in PixArt,
    two project first; or as one state with the time."""
    qk_norm: bool = False
    """Normalise queries and keys, which keeps attention tame in large or half-precision networks."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, given: Any) -> Any:
        """What the size stands for, under what is said explicitly; a wrong size is left for its own check."""
        if not isinstance(given, Mapping) or not isinstance(given.get("size"), str):
            return given
        name, _, patch = given["size"].partition("/")
        if name not in SIZES or not patch.isdecimal():
            return given
        return {**SIZES[name], "patch": (int(patch), int(patch)), **given}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads or self.width // self.heads % 2:
            fitting = [n for n in range(1, self.width // 2 + 1) if self.width % (2 * n) == 0]
            near = sorted(fitting, key=lambda n: (abs(n - self.heads), n))[:3]
            better = " or ".join(str(n) for n in sorted(near))
            what = "is not a multiple of" if self.width % self.heads else "is an odd multiple of"
            raise ValueError(f"width {self.width} {what} heads {self.heads}; heads = {better} would do")
        return self

    @model_validator(mode="after")
    def _patch_has_sense(self) -> Self:
        if self.patch is None:
            return self
        if self.width % (2 * len(self.patch)):
            raise ValueError(
                f"width {self.width} must be a multiple of {2 * len(self.patch)} for positions over "
                f"{len(self.patch)} axes"
            )
        if min(self.patch) < 1:
            raise ValueError("every entry of patch must be at least 1")
        return self

    def patch_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Samples per token along each axis, for samples of this shape, (channels, *grid)."""
        return patches.usual(shape) if self.patch is None else self.patch


class ObjectiveConfig(Section):
    """What a network predicts, and on which path; any of them becomes the same velocity when sampling."""

    path: Literal["linear", "cosine", "linear-beta", "scaled-linear"] = "linear"
    """Flow matching's; improved DDPM's; DDPM's, which is DiT's; or Stable Diffusion's noise schedule."""
    prediction: Literal["velocity", "noise", "data", "v"] = "velocity"
    """noise - x_0; the noise; x_0; or α noise - σ x_0."""
