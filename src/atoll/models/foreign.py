"""Checkpoints as others wrote them: read, unwrapped, recognised."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atoll.config import Section
from atoll.errors import CheckpointError

Tensors = dict[str, Tensor]


class Facts(Section):
    """What a checkpoint does not say of itself; each is guessed from the published models if left out."""

    heads: int | None = Field(None, ge=1)
    """Attention heads."""
    classes: int | None = Field(None, ge=1)
    """Number of classes, without the one for "not told"."""
    path: Literal["linear", "cosine", "linear-beta", "scaled-linear"] | None = None
    """The noise schedule that it was trained with."""
    prediction: Literal["velocity", "noise", "data", "v"] | None = None
    """What it predicts."""
    grid: tuple[int, ...] | None = Field(None, strict=False)
    """Another size of samples (without channels) to resample its positions for."""


@dataclass(frozen=True)
class Foreign:
    """A checkpoint as others wrote it."""

    origin: Path
    tensors: Tensors
    config: Mapping[str, Any]
    """What is written beside it, if anything."""
    position: Tensor | None = None
    """Its table of positions, where that is not the one we compute."""
    frequency: Tensor | None = None
    """Its frequencies of the time, likewise."""

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of one tensor, which must be there."""
        if key not in self.tensors:
            raise CheckpointError(f"{self.origin} lacks {key}; it is not what its other tensors look like")
        return tuple(self.tensors[key].shape)

    def count(self, pattern: str) -> int:
        """How many numbers there are at the place of {i}."""
        expression = re.compile(re.escape(pattern).replace(re.escape("{i}"), r"(\d+)"))
        numbers = {int(match[1]) for key in self.tensors if (match := expression.match(key))}
        return max(numbers, default=-1) + 1


def read(checkpoint: Path) -> Foreign:
    """Read a safetensors file, or a folder of them with a config.json as diffusers writes it."""
    folder = checkpoint / "transformer" if (checkpoint / "transformer").is_dir() else checkpoint
    if folder.is_dir():
        files = sorted(folder.glob("*.safetensors"))
        plain = [file for file in files if not re.search(r"\.(fp16|bf16)\b", file.name)]
        files, described = plain or files, folder / "config.json"
    else:
        files, described = [folder] if folder.exists() else [], folder.with_name("config.json")
    if not files:
        raise CheckpointError(f"{checkpoint}: no such file, nor a folder with .safetensors in it")
    tensors: Tensors = {}
    for file in files:
        if file.suffix != ".safetensors":
            raise CheckpointError(
                f"{file} is not .safetensors; other formats can run code when opened: "
                "docs/heterogeneous.md shows how to convert one"
            )
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); fetch it again") from None
    return Foreign(checkpoint, _without_prefix(tensors), _read_config(described))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch it again") from None


def _without_prefix(tensors: Tensors) -> Tensors:
    """Names without what wrappers (data parallel, compile, EMA) put before all of them."""
    for prefix in ("module.", "_orig_mod.", "ema.", "model.", "transformer."):
        if all(key.startswith(prefix) for key in tensors):
            return _without_prefix({key.removeprefix(prefix): value for key, value in tensors.items()})
    return tensors


def detect(foreign: Foreign) -> str:
    """Which of the known layouts this is."""
    signs = {
        "diffusers-pixart": ("adaln_single.linear.weight", "pos_embed.proj.weight"),
        "diffusers-dit": ("transformer_blocks.0.norm1.linear.weight", "pos_embed.proj.weight"),
        "dit": ("x_embedder.proj.weight", "blocks.0.adaLN_modulation.1.weight"),
    }
    for layout, keys in signs.items():
        if all(key in foreign.tensors for key in keys):
            return layout
    some = ", ".join(sorted(foreign.tensors)[:3])
    raise CheckpointError(
        f"{foreign.origin} has no layout that is known here (it begins with {some}); give a --mapping file"
    )
