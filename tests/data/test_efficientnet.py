"""EfficientNet-Lite0 as published: shapes, padding, and features that know what is in a picture."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from atoll.data.efficientnet import Convolution, EfficientNetLite0
from atoll.data.features import EfficientNetFeatures
from tests.data.conftest import SHARED, needs


@pytest.mark.parametrize(("length", "before", "after"), [(6, 0, 1), (7, 1, 1)])
def test_padding_is_tensorflows(length: int, before: int, after: int) -> None:
    """A kernel of three at stride two needs one more on the right where the length is even."""
    layer = Convolution(1, 1, 3, stride=2)
    x = torch.randn(1, 1, length, length)
    expected = F.conv2d(F.pad(x, (before, after, before, after)), layer.weight, stride=2)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).shape[-1] == -(-length // 2)


def test_weights_of_the_published_layout_load_and_the_classifier_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = EfficientNetLite0().eval()
    assert (
        sum(weight.numel() for weight in model.parameters()) == 3_371_008
    )  # 4.65 M less 1000 x 1281 of the head
    save_file({**model.state_dict(), "_fc.weight": torch.zeros(1000, 1280)}, tmp_path / "model.safetensors")
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        expected = F.normalize(model(pixels), dim=1)
    found = EfficientNetFeatures(str(tmp_path), "cpu")(pixels)
    assert found.shape == (2, 1280)
    torch.testing.assert_close(found, expected)


@needs("weights/efficientnet_lite0")
@needs("data/cifar10_5k.npz")
def test_nearest_neighbours_are_of_the_same_kind() -> None:
    data = np.load(SHARED / "data/cifar10_5k.npz", allow_pickle=False)
    chosen = np.random.default_rng(0).permutation(5000)[:160]
    pixels = torch.from_numpy(data["images"][chosen]).permute(0, 3, 1, 2).contiguous()
    labels = data["labels"][chosen]
    model = EfficientNetFeatures(str(SHARED / "weights/efficientnet_lite0"), "cpu")
    features = torch.cat([model(batch) for batch in torch.split(pixels, 16)])
    alike = features @ features.T - 2 * torch.eye(160)
    agree = float((labels[alike.argmax(dim=1).numpy()] == labels).mean())
    raw = F.normalize(pixels.flatten(1).float() - 128, dim=1)
    raw_agree = float((labels[(raw @ raw.T - 2 * torch.eye(160)).argmax(dim=1).numpy()] == labels).mean())
    assert agree > 0.45 > 0.3 > raw_agree
