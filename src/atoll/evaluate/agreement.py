"""Whether pictures show what was asked: the CLIP score."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll import devices
from atoll.data.borrowed import loading, require
from atoll.data.features import colour_frames, pooled
from atoll.evaluate.distances import in_parts

BATCH = 50


class ClipScore:
    """100 max(cos(picture, text), 0) by a CLIP of transformers (Hessel et al. 2021, eq. 1 with w = 100)."""

    def __init__(self, name: str, device: str = "auto") -> None:
        transformers = require("transformers", "evaluate.clip")
        with loading(f"evaluate.clip '{name}'"):
            self._pictures = transformers.AutoImageProcessor.from_pretrained(name)
            self._words = transformers.AutoTokenizer.from_pretrained(name)
            self._model: Any = transformers.CLIPModel.from_pretrained(name, use_safetensors=True)
        self._device = devices.pick(device)
        self._model.to(self._device).eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, values: Tensor, prompts: Sequence[str]) -> Tensor:
        """The score of each uint8 picture with its prompt."""
        scores, done = [], 0
        for part in in_parts(values, BATCH):
            scores.append(self._scores(part, prompts[done : done + len(part)]))
            done += len(part)
        return torch.cat(scores)

    def _scores(self, values: Tensor, prompts: Sequence[str]) -> Tensor:
        pictures = [np.asarray(picture) for picture in colour_frames(values).permute(0, 2, 3, 1)]
        seen = self._pictures(images=pictures, return_tensors="pt", input_data_format="channels_last")
        read = self._words(list(prompts), padding=True, truncation=True, return_tensors="pt")
        left = pooled(self._model.get_image_features(seen["pixel_values"].to(self._device, torch.float32)))
        right = pooled(
            self._model.get_text_features(
                input_ids=read["input_ids"].to(self._device),
                attention_mask=read["attention_mask"].to(self._device),
            )
        )
        return 100 * F.cosine_similarity(left.float(), right.float()).clamp(min=0).cpu()
