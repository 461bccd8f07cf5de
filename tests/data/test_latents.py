"""Latents there and back, by autoencoders loaded as the real ones are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.data.encode import prepare
from atoll.data.latents import Autoencoder, decode_samples, split_subfolder
from atoll.data.partition import partition
from atoll.data.store import Reader, to_pixels
from atoll.errors import DataError
from atoll.runs.records import SampleFormat
from tests.data.conftest import SHARED, MakeRun, needs, pixels
from tests.pretend_gpu import pretended_gpu

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's


@pytest.fixture(scope="module")
def tiny_kl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny AutoencoderKL of the layout of stabilityai/sd-vae-ft-mse, random weights, saved to a folder."""
    diffusers = pytest.importorskip("diffusers")
    folder = tmp_path_factory.mktemp("kl")
    torch.manual_seed(0)
    diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=4,
    ).save_pretrained(folder)
    return folder


def test_encoding_is_the_mean_of_the_posterior(tiny_kl: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    x = torch.from_numpy(pixels(3, size=16).transpose(0, 3, 1, 2).copy())
    autoencoder = Autoencoder(str(tiny_kl), "cpu")
    model = diffusers.AutoencoderKL.from_pretrained(tiny_kl).eval()
    with torch.inference_mode():
        mean = model.encode(x / 127.5 - 1).latent_dist.mean
        decoded = model.decode(mean).sample.clamp(-1, 1)
    torch.testing.assert_close(autoencoder.encode(x), mean)
    torch.testing.assert_close(autoencoder.decode(mean), decoded)
    assert mean.shape == (3, 4, 8, 8)


def test_half_precision_stays_near(tiny_kl: Path) -> None:
    x = torch.from_numpy(pixels(3, size=16).transpose(0, 3, 1, 2).copy())
    exact, rounded = (Autoencoder(str(tiny_kl), "cpu", name).encode(x) for name in ("float32", "bfloat16"))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float((exact - rounded).norm() / exact.norm()) < 0.02


def test_on_a_gpu_latents_are_those_of_the_cpu(tiny_kl: Path) -> None:
    x = torch.from_numpy(pixels(3, size=16).transpose(0, 3, 1, 2).copy())
    expected = Autoencoder(str(tiny_kl), "cpu").encode(x)
    with pretended_gpu():
        autoencoder = Autoencoder(str(tiny_kl), "auto", "float32")
        assert {value.device.type for value in autoencoder._model.parameters()} == {"cuda"}
        latents = autoencoder.encode(x)
        assert autoencoder.decode(latents).device.type == latents.device.type == "cpu"
    torch.testing.assert_close(latents, expected)


def test_grey_and_video_are_encoded_as_colour_frames(tiny_kl: Path) -> None:
    autoencoder = Autoencoder(str(tiny_kl), "cpu")
    video = torch.randint(0, 256, (2, 1, 3, 16, 16), dtype=torch.uint8)
    latents = autoencoder.encode(video)
    assert latents.shape == (2, 4, 3, 8, 8)
    torch.testing.assert_close(latents[:, :, 1], autoencoder.encode(video[:, :, 1]))
    assert autoencoder.decode(latents).shape == (2, 3, 3, 16, 16)


def test_latents_at_rest_are_standardised_and_decoded_again(
    tiny_kl: Path, make_run: MakeRun, tmp_path: Path
) -> None:
    images = pixels(40, size=16)
    np.savez(tmp_path / "set.npz", images=images)
    encode = {"autoencoder": str(tiny_kl), "batch": 8, "precision": "float32"}
    run = make_run(tmp_path / "set.npz", data={"part": 16}, encode=encode)
    prepare(run)
    contents = partition(run).contents
    assert (contents.kind, contents.shape, contents.dtype) == ("latent", (4, 8, 8), "float16")
    reader = Reader([run.cluster(0), run.cluster(1)], 40, seed=0)
    batches = reader.batches()
    x_0 = next(batches).x_0
    batches.close()
    torch.testing.assert_close(x_0.mean(dim=(0, 2, 3)), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(x_0.std(dim=(0, 2, 3), correction=0), torch.ones(4), atol=1e-3, rtol=0)
    decoded = decode_samples(x_0, reader.contents, "cpu")
    autoencoder = Autoencoder(str(tiny_kl), "cpu")
    expected = autoencoder.decode(autoencoder.encode(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())))
    # The reader shuffles: each decoded sample must be one of the originals, all of them once.
    distance = (decoded.flatten(1)[:, None] - expected.flatten(1)[None]).abs().amax(dim=2)
    assert sorted(distance.argmin(dim=1).tolist()) == list(range(40))
    assert float(distance.min(dim=1).values.max()) < 0.02
    assert to_pixels(x_0, reader.contents).shape == (40, 8, 8, 3)


def test_pixels_are_decoded_as_they_are() -> None:
    x = torch.randn(2, 3, 4, 4)
    about = SampleFormat(kind="image", dtype="uint8", mean=(127.5,) * 3, std=(127.5,) * 3)
    assert decode_samples(x, about) is x


@pytest.mark.parametrize(
    ("size", "channels", "problem"),
    [(15, 3, r"set data.size to a multiple of"), (16, 2, "set data.channels")],
)
def test_what_does_not_fit_is_told(tiny_kl: Path, size: int, channels: int, problem: str) -> None:
    x = torch.zeros(1, channels, size, size, dtype=torch.uint8)
    with pytest.raises(DataError, match=problem):
        Autoencoder(str(tiny_kl), "cpu").encode(x)


def test_what_is_not_there_or_something_else_is_told(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(DataError, match="is a UNet2DModel; give one of AutoencoderKL, AutoencoderTiny"):
        Autoencoder(str(tmp_path), "cpu")
    with pytest.raises(DataError, match="encode.autoencoder 'nobody/nothing' cannot be loaded"):
        Autoencoder("nobody/nothing", "cpu")


def test_a_name_may_point_into_a_pipeline() -> None:
    assert split_subfolder("stabilityai/sd-vae-ft-mse") == ("stabilityai/sd-vae-ft-mse", None)
    assert split_subfolder("owner/pipeline/vae") == ("owner/pipeline", "vae")
    assert split_subfolder("/a/b/c") == ("/a/b/c", None)
    assert split_subfolder("./b/c") == ("./b/c", None)


@needs("weights/taesd")
@needs("data/emoji_32.npz")
def test_taesd_end_to_end(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    data = np.load(SHARED / "data/emoji_32.npz", allow_pickle=False)
    np.savez(tmp_path / "set.npz", images=data["images"][:24], captions=data["captions"][:24])
    run = make_run(
        tmp_path / "set.npz",
        data={"size": 64},
        encode={"autoencoder": str(SHARED / "weights/taesd"), "batch": 8},
    )
    prepare(run)
    partition(run)
    reader = Reader([run.cluster(0), run.cluster(1)], 24, seed=0)
    batches = reader.batches()
    x_0 = next(batches).x_0
    batches.close()
    assert reader.shape == (4, 8, 8)
    decoded = decode_samples(x_0, reader.contents, "cpu")
    assert decoded.shape == (24, 3, 64, 64)
    small = torch.nn.functional.interpolate(decoded, size=(32, 32), mode="area")
    original = torch.from_numpy(data["images"][:24].transpose(0, 3, 1, 2).copy()) / 127.5 - 1
    error = ((small[:, None] - original[None]) ** 2).mean(dim=(2, 3, 4))
    assert sorted(error.argmin(dim=1).tolist()) == list(range(24))
    assert float(error.min(dim=1).values.mean()) < 0.03  # more than 21 dB
    preview = torch.from_numpy(to_pixels(x_0, reader.contents)).movedim(-1, 1) / 127.5 - 1
    seen = torch.nn.functional.interpolate(original, size=(8, 8), mode="area")
    assert float(((preview[:, None] - seen[None]) ** 2).mean(dim=(2, 3, 4)).min(dim=1).values.mean()) < 0.1
