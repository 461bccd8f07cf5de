"""What docs/data.md says is so: recipes are valid, bytes and operations follow from formats and networks."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from atoll.config import validate

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
IMAGES = 150e6


def test_every_recipe_is_valid() -> None:
    recipes = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(recipes) == 4
    for recipe in recipes:
        validate({"name": "page", **tomllib.loads(recipe)}, "docs/data.md")


@pytest.mark.filterwarnings("ignore")
def test_operations_are_those_of_the_networks() -> None:
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    with torch.device("meta"), torch.inference_mode():
        autoencoder = diffusers.AutoencoderKL(  # stabilityai/sd-vae-ft-mse
            block_out_channels=(128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
            latent_channels=4,
        )
        shared = {"image_size": 518, "patch_size": 14}
        base = transformers.Dinov2Model(transformers.Dinov2Config(**shared))
        large = transformers.Dinov2Model(
            transformers.Dinov2Config(
                hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, **shared
            )
        )
        counted = [
            operations(autoencoder.encoder, torch.zeros(1, 3, 256, 256)),
            operations(base, torch.zeros(1, 3, 224, 224)),
            operations(large, torch.zeros(1, 3, 224, 224)),
        ]
    latents, features, large_features = counted
    hours = [count * IMAGES / 100e12 / 3600 for count in counted]
    assert f"{latents / 1e9:.0f} GFLOP per image, {latents * IMAGES / 1e18:.0f} EFLOP in all" in PAGE
    assert f"{hours[0]:.0f} GPU hours at 100 TFLOP/s sustained" in PAGE
    assert f"{features / 1e9:.0f} GFLOP per image, {features * IMAGES / 1e18:.0f} EFLOP in all" in PAGE
    assert f"{hours[1]:.0f} GPU hours at 100 TFLOP/s; by -large {hours[2]:.0f}" in PAGE
    assert f"-large costs {large_features / features:.1f} times as much" in PAGE


def operations(network: torch.nn.Module, x: torch.Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        network(x)
    return counter.get_total_flops()


def test_bytes_follow_from_the_formats() -> None:
    latent = int(np.prod((4, 32, 32))) * np.dtype(np.float16).itemsize
    assert f"| {latent:,} B | {latent * IMAGES / 1e12:.2f} TB in `data/`" in PAGE
    assert f"{latent * IMAGES / 8 / 1e9:.0f} GB each" in PAGE
    assert f"| {768 * 2:,} B | {768 * 2 * IMAGES / 1e9:.0f} GB |" in PAGE
    assert f"{(20 + 1) * 768 * 2 / 1000:.0f} kB | {(20 + 1) * 768 * 2 * IMAGES / 1e12:.1f} TB" in PAGE
    assert f"{4 * latent * IMAGES / 500e6 / 3600:.1f} hours at 500 MB/s" in PAGE
    assert f"{1024 * 768 * 2 * IMAGES / 1e15:.2f} PFLOP in all" in PAGE
