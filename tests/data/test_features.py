"""Features by pixels or by the vision models of transformers, loaded as the real ones are."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from atoll.config import EncodeConfig
from atoll.data.encode import prepare
from atoll.data.features import VisionFeatures, colour_frames, open_features, pixel_features, pooled, to_rest
from atoll.data.partition import partition
from atoll.errors import DataError
from tests.data.conftest import SHARED, MakeRun, needs, pixels
from tests.pretend_gpu import pretended_gpu
from tests.serving import tiny_clip

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 1, 28, 28), 784),
        ((2, 1, 64, 64), 32 * 32),
        ((2, 3, 32, 32), 3 * 18 * 18),
        ((2, 2, 64), 128),
        ((2, 1, 4000), 1024),
        ((2, 3, 16, 64, 64), 3 * 6 * 6 * 6),
    ],
)
def test_pixels_are_features_of_limited_number(shape: tuple[int, ...], expected: int) -> None:
    assert pixel_features(torch.zeros(shape, dtype=torch.uint8)).shape == (2, expected)


def test_small_versions_are_averages() -> None:
    x = torch.arange(64 * 64, dtype=torch.float32).reshape(1, 1, 64, 64)
    small = pixel_features(x).reshape(32, 32)
    torch.testing.assert_close(small[3, 5], x[0, 0, 6:8, 10:12].mean())


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of the class and layout of facebook/dinov2-base, random weights, saved to a folder."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    size = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    transformers.Dinov2Model(transformers.Dinov2Config(**size)).save_pretrained(folder)
    transformers.BitImageProcessor(
        size={"shortest_edge": 32},
        crop_size={"height": 28, "width": 28},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    words = {"vocab_size": 50, "bos_token_id": 48, "eos_token_id": 49}
    return tiny_clip(tmp_path_factory.mktemp("clip"), words, pixels=16, patch=8, width=12)


def test_on_a_gpu_features_are_those_of_the_cpu(dinov2: Path) -> None:
    x = torch.from_numpy(pixels(3, size=28).transpose(0, 3, 1, 2).copy())
    expected = VisionFeatures(str(dinov2), "cpu")(x)
    with pretended_gpu():
        found = VisionFeatures(str(dinov2), "auto")(x)
        assert found.device.type == "cpu"
        rounded = VisionFeatures(str(dinov2), "auto", "auto")(x)
    torch.testing.assert_close(found, expected)
    assert 0 < float((rounded - expected).norm()) < 0.05


def test_dinov2_gives_its_pooled_token_of_length_one(dinov2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    x = torch.from_numpy(pixels(3, size=28).transpose(0, 3, 1, 2).copy())
    found = VisionFeatures(str(dinov2), "cpu")(x)
    model = transformers.Dinov2Model.from_pretrained(dinov2).eval()
    big = (
        F.interpolate(x.float(), size=(32, 32), mode="bicubic", antialias=True)
        .round()
        .clamp(0, 255)[..., 2:30, 2:30]
    )
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, 1, 3, 1, 1)
    with torch.inference_mode():
        expected = F.normalize(model((big / 255 - mean) / std).last_hidden_state[:, 0], dim=1)
    assert found.shape == (3, 24)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


def test_clip_comes_by_the_same_door(clip: Path) -> None:
    found = open_features(EncodeConfig(features=str(clip), device="cpu", precision="float32"), "image")(
        torch.zeros(2, 1, 20, 20, dtype=torch.uint8)
    )
    assert found.shape == (2, 12)  # the space that pictures and texts share
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


def test_grey_becomes_colour_and_video_its_middle_frame() -> None:
    video = torch.arange(5, dtype=torch.uint8).reshape(1, 1, 5, 1, 1).expand(2, 1, 5, 3, 3)
    assert colour_frames(video).shape == (2, 3, 3, 3)
    assert colour_frames(video).unique().tolist() == [2]


def test_models_see_no_video_of_floats() -> None:
    with pytest.raises(DataError, match="needs video as uint8"):
        colour_frames(torch.zeros(1, 3, 2, 8, 8))


def test_pooling_without_a_pooler_is_the_mean() -> None:
    class Tokens:
        last_hidden_state = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])

    assert pooled(Tokens()).tolist() == [[2.0, 4.0]]


def test_features_by_a_model_partition_a_run(dinov2: Path, make_run: MakeRun, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=pixels(30))
    run = make_run(tmp_path / "set.npz", encode={"features": str(dinov2), "batch": 7}, data={"part": 16})
    prepare(run)
    rested = np.load(run.data.path / "features-00000-000.npy", allow_pickle=False)
    assert (rested.shape, rested.dtype) == ((16, 24), np.float16)
    assert sum(partition(run).contents.sizes) == 30
    assert not (run.partition.path / "projection.npy").exists()  # a model's features are taken as they are


def test_half_precision_keeps_directions() -> None:
    x = F.normalize(torch.randn(50, 384, generator=torch.Generator().manual_seed(0)), dim=1)
    rested = torch.from_numpy(to_rest(x, torch.zeros(1, dtype=torch.uint8))).float()
    assert float((x * rested).sum(dim=1).min()) > 0.999


@pytest.mark.parametrize("name", ["nobody/nothing", "folder"])
def test_a_model_that_is_not_there_is_told(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    if name == "folder":
        (tmp_path / "config.json").write_text('{"model_type": "no such"}')
        name = str(tmp_path)
    with pytest.raises(DataError, match="encode.features .* cannot be loaded: .*; give a Hub name") as caught:
        VisionFeatures(name, "cpu")
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_refused(dinov2: Path, tmp_path: Path) -> None:
    for file in ("config.json", "preprocessor_config.json"):
        (tmp_path / file).write_bytes((dinov2 / file).read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(DataError, match="safetensors"):
        VisionFeatures(str(tmp_path), "cpu")


@needs("weights/efficientnet_lite0")
@needs("data/cifar10_5k.npz")
def test_efficientnet_comes_by_the_same_door(make_run: MakeRun, tmp_path: Path) -> None:
    data = np.load(SHARED / "data/cifar10_5k.npz", allow_pickle=False)
    np.savez(tmp_path / "set.npz", images=data["images"][::50], labels=data["labels"][::50])
    run = make_run(
        tmp_path / "set.npz",
        encode={"features": str(SHARED / "weights/efficientnet_lite0")},
        partition={"clusters": 5},
    )
    prepare(run)
    assert partition(run).contents.nmi > 0.3
