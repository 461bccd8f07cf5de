"""A classifier that takes a second to train, a tiny CLIP, and weights for LPIPS."""

import json

import numpy as np
import pytest

from atoll.data import partition
from atoll.evaluate import classifier
from atoll.evaluate.diversity import LAYERS
from atoll.runs.components import Member, Members, write_members
from tests.serving import tiny_clip


@pytest.fixture(autouse=True)
def _quick_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "STEPS", 60)


@pytest.fixture
def clip(tmp_path):
    """A tiny CLIP of random weights."""
    transformers = pytest.importorskip("transformers")
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
    numbers = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 16,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return tiny_clip(folder, numbers, pixels=32, patch=16, width=8)


@pytest.fixture
def arrays():
    """Weights of the right shapes, at random."""
    random = np.random.default_rng(0)
    found, before = {}, 3
    for index, (width, kernel, _, _) in enumerate(LAYERS):
        shape = (kernel, kernel, before, width)
        found[f"AlexNet_0/Conv_{index}/kernel"] = random.normal(0, 1 / np.sqrt(np.prod(shape[:3])), shape)
        found[f"AlexNet_0/Conv_{index}/bias"] = random.normal(0, 0.1, width)
        found[f"NetLinLayer_{index}/Conv_0/kernel"] = random.random((1, 1, width, 1))
        before = width
    return {name: array.astype(np.float32) for name, array in found.items()}


@pytest.fixture
def grown(prepared):
    """Give a run that has grown by part 3 on this machine; both hold out a share of samples, or none."""

    def make(share, made_here=True):
        settings = [f"data.holdout={share}"] if share else []
        run = prepared(*settings, name="grown")
        others = prepared(
            *settings, "partition.clusters=1", "partition.method='random'", name="grown-3-component"
        )
        for one in (run, others):
            if share or one is others:
                (one.path / "partition").unlink()
                partition.partition(one)
        if not made_here:
            others.path.rename(others.path.with_name("elsewhere"))
        member = Member(number=3, name="new", digest="0" * 64)
        write_members(run.path, Members(added=(member,)))
        return run, others

    return make
