"""The CLIP score against the logits of CLIP itself, with a tiny CLIP of random weights."""

import json

import pytest
import torch

from atoll.errors import DataError
from atoll.evaluate.agreement import ClipScore

transformers = pytest.importorskip("transformers")


@pytest.fixture
def clip(tmp_path):
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "red</w>", "blue</w>", "shoe</w>"]
    letters = sorted({letter for word in words[2:] for letter in word.removesuffix("</w>")})
    vocabulary = [*words, *letters, *(f"{letter}</w>" for letter in letters if letter != "a")]
    folder = tmp_path / "clip"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=16
    ).save_pretrained(folder)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={
            **size,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 16,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={**size, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    return folder


def test_the_score_is_the_cosine_that_clip_itself_finds(clip):
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
    with pytest.raises(DataError, match=r"evaluate\.clip"):
        ClipScore(str(tmp_path / "gone"), "cpu")
