"""Text states: captions through any text encoder of transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import devices
from atoll.data import borrowed
from atoll.data.borrowed import loading, require


@dataclass(frozen=True)
class TextStates:
    """What a network is told of captions."""

    tokens: Tensor
    """(batch, tokens, width), zero beyond the end of a caption."""
    mask: Tensor
    """(batch, tokens), true where there is a token."""
    pooled: Tensor
    """(batch, width), one vector for the whole caption."""


class TextEncoder:
    """Captions to token states, mask and pooled vector, in half precision."""

    def __init__(self, name: str, tokens: int, device: str = "auto", precision: str = "float32") -> None:
        transformers = require("transformers", "encode.text")
        with loading(f"encode.text '{name}'"):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            made_of = transformers.AutoConfig.from_pretrained(name)
            self._model = _model_class(transformers, made_of).from_pretrained(name, use_safetensors=True)
        if made_of.is_encoder_decoder and hasattr(self._model, "get_encoder"):
            self._model = self._model.get_encoder()
        self._device = devices.pick(device, "encode.device")
        self._arithmetic = borrowed.arithmetic(precision, self._device)
        self._model.to(self._device).eval().requires_grad_(False)
        self._own_pooling = made_of.model_type.startswith("clip")
        self.name, self.tokens = name, min(tokens, self._tokenizer.model_max_length)
        self.width: int = self._encode([""]).tokens.shape[-1]

    @torch.inference_mode()
    def __call__(self, captions: Sequence[str]) -> TextStates:
        """States of captions, padded to the longest that the encoder was opened for, float32 on the CPU."""
        states = self._encode(captions)
        missing = self.tokens - states.mask.shape[1]
        return TextStates(
            torch.nn.functional.pad(states.tokens, (0, 0, 0, missing)),
            torch.nn.functional.pad(states.mask, (0, missing)),
            states.pooled,
        )

    def _encode(self, captions: Sequence[str]) -> TextStates:
        inputs = self._tokenizer(
            list(captions), padding=True, truncation=True, max_length=self.tokens, return_tensors="pt"
        )
        mask = inputs["attention_mask"].to(self._device)
        with devices.autocast(self._arithmetic, self._device):
            output: Any = self._model(input_ids=inputs["input_ids"].to(self._device), attention_mask=mask)
        tokens = output.last_hidden_state.float() * mask[..., None]
        if self._own_pooling:
            pooled = output.pooler_output.float()
        else:
            # Most encoders' own pooling was trained for something else, or not at all; the mean serves all.
            pooled = tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return TextStates(tokens.half().float().cpu(), mask.bool().cpu(), pooled.half().float().cpu())


def _model_class(transformers: Any, made_of: Any) -> Any:
    if made_of.model_type == "clip":
        return transformers.CLIPTextModel
    if type(made_of) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        return transformers.AutoModelForTextEncoding
    return transformers.AutoModel


@dataclass(frozen=True)
class TextAtRest:
    """States of captions as bytes of half precision, tokens without their padding."""

    tokens: list[bytes]
    pooled: list[bytes]
    length: int
    """The most tokens that a caption may have."""
    width: int
    """Of a token's state."""


def to_rest(states: TextStates) -> TextAtRest:
    """States as they are stored."""
    tokens = [
        row[keep].half().numpy().tobytes() for row, keep in zip(states.tokens, states.mask, strict=True)
    ]
    pooled = [row.half().numpy().tobytes() for row in states.pooled]
    return TextAtRest(tokens, pooled, *states.tokens.shape[1:])


def from_rest(tokens: Sequence[bytes], pooled: Sequence[bytes], length: int, width: int) -> TextStates:
    """The inverse of `to_rest`."""
    padded: NDArray[np.float16] = np.zeros((len(tokens), length, width), np.float16)
    mask = np.zeros((len(tokens), length), bool)
    for row, raw in enumerate(tokens):
        states = np.frombuffer(raw, np.float16).reshape(-1, width)
        padded[row, : len(states)] = states
        mask[row, : len(states)] = True
    vectors = np.frombuffer(b"".join(pooled), np.float16).reshape(len(pooled), -1)
    return TextStates(
        torch.from_numpy(padded).float(), torch.from_numpy(mask), torch.from_numpy(vectors.copy()).float()
    )
