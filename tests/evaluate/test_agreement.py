"""The CLIP score against the logits of CLIP itself, with a tiny CLIP of random weights."""

import pytest
import torch

from atoll.errors import DataError
from atoll.evaluate.agreement import ClipScore


def test_the_score_is_the_cosine_that_clip_itself_finds(clip):
    import transformers

    source = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 256, (60, 3, 32, 32), generator=source, dtype=torch.uint8)
    prompts = ["a red shoe", "blue", "a shoe"] * 20
    found = ClipScore(str(clip), "cpu")(pictures, prompts)
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    processor = transformers.CLIPImageProcessor.from_pretrained(clip)
    seen = processor(images=list(pictures.permute(0, 2, 3, 1).numpy()), return_tensors="pt")
    read = transformers.AutoTokenizer.from_pretrained(clip)(prompts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**read, pixel_values=seen["pixel_values"]).logits_per_image
        expected = 100 * (logits.diagonal() / model.logit_scale.exp()).clamp(min=0)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert float(found.std()) > 0


def test_a_missing_clip_is_told(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(DataError, match=r"evaluate\.clip"):
        ClipScore(str(tmp_path / "gone"), "cpu")
