"""LPIPS against a second implementation, written out with loops over windows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import DataError
from atoll.evaluate import diversity
from atoll.evaluate.diversity import LAYERS, SCALE, SHIFT, Lpips

WEIGHTS = Path(__file__).parents[3] / "shared" / "weights" / "lpips" / "alexnet.npz"


def by_hand(arrays, left, right):
    """One pair of pictures (3, height, width), uint8, by matrix products over windows."""
    total = 0.0
    x, y = (
        (p / 127.5 - 1 - np.reshape(SHIFT, (3, 1, 1))) / np.reshape(SCALE, (3, 1, 1)) for p in (left, right)
    )
    for index, (_, kernel, stride, padding) in enumerate(LAYERS):
        weight = arrays[f"AlexNet_0/Conv_{index}/kernel"]
        if index in (1, 2):
            x, y = (windows(p, 3, 2).max((3, 4)) for p in (x, y))
        x, y = (np.pad(p, ((0, 0), (padding, padding), (padding, padding))) for p in (x, y))
        x, y = (
            np.einsum("chwij,ijco->ohw", windows(p, kernel, stride), weight)
            + arrays[f"AlexNet_0/Conv_{index}/bias"][:, None, None]
            for p in (x, y)
        )
        x, y = (np.maximum(p, 0) for p in (x, y))
        a, b = (p / np.sqrt((p**2).sum(0) + 1e-20) for p in (x, y))
        head = arrays[f"NetLinLayer_{index}/Conv_0/kernel"].reshape(-1, 1, 1)
        total += ((a - b) ** 2 * head).sum(0).mean()
    return total


def windows(x, size, stride):
    found = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return found[:, ::stride, ::stride]


def pictures(num, size=64, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, 3, size, size), generator=source, dtype=torch.uint8)


def test_agrees_with_the_same_thing_written_out(arrays, tmp_path):
    np.savez(tmp_path / "alexnet.npz", **arrays)
    network = Lpips.load(str(tmp_path))
    left, right = pictures(2, seed=0), pictures(2, seed=1)
    expected = [by_hand(arrays, a.numpy(), b.numpy()) for a, b in zip(left, right, strict=True)]
    assert network(left, right).tolist() == pytest.approx(expected, rel=1e-4)
    assert network(left, left).tolist() == pytest.approx([0, 0], abs=1e-9)
    assert network(left, right).tolist() == pytest.approx(network(right, left).tolist())


@pytest.mark.skipif(not WEIGHTS.is_file(), reason="no LPIPS weights beside the project")
def test_real_weights_see_what_people_see():
    """A small shift is nearer than noise of the same energy, which a mean square cannot tell."""
    network = Lpips.load(str(WEIGHTS))
    base = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    base[:, :, 16:48, 16:48] = 220
    shifted = base.roll(1, 3)
    energy = (shifted.float() - base.float()).square().mean().sqrt()
    noise = torch.randn(base.shape, generator=torch.Generator().manual_seed(0)) * energy
    noisy = (base.float() + noise).clamp(0, 255).to(torch.uint8)
    assert network(base, shifted).item() < 0.5 * network(base, noisy).item()
    small = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    assert network(small[:1], small[1:]).shape == (1,)


def test_pairs_share_their_prompt():
    assert diversity.partners(["a", "b", "a", "a", "b", "a"]) == [(0, 2), (1, 4), (3, 5)]
    assert diversity.partners(["a", "b"]) == []


def test_diversity_is_that_within_prompts(arrays, tmp_path):
    np.savez(tmp_path / "alexnet.npz", **arrays)
    network = Lpips.load(str(tmp_path))
    one, other = pictures(1, seed=0), pictures(1, seed=1)
    copies = torch.cat([one, other, one, other])
    assert diversity.diversity(network, copies, [0, 1, 0, 1], 5).value == pytest.approx(0, abs=1e-9)
    mixed = diversity.diversity(network, copies, [0, 0, 1, 1], 5)
    assert mixed.value == pytest.approx(network(one, other).item())
    assert diversity.diversity(network, copies, [0, 1, 2, 3], 5) is None


@pytest.mark.parametrize("name", ["gone.npz", "wrong.npz"])
def test_wrong_weights_are_told(name, tmp_path):
    np.savez(tmp_path / "wrong.npz", something=np.zeros(3))
    with pytest.raises(DataError, match=r"evaluate\.lpips"):
        Lpips.load(str(tmp_path / name))


@given(st.lists(st.integers(0, 3), max_size=20))
def test_every_sample_is_in_one_pair_at_most_and_none_is_left_that_could_be(groups):
    pairs = diversity.partners(groups)
    used = [index for pair in pairs for index in pair]
    assert len(used) == len(set(used))
    assert all(groups[a] == groups[b] and a < b for a, b in pairs)
    assert len(pairs) == sum(groups.count(group) // 2 for group in set(groups))


class Brightness:
    """The difference of the mean brightness of two pictures, in place of a network."""

    def __call__(self, left, right):
        return (left.float().mean((1, 2, 3)) - right.float().mean((1, 2, 3))).abs()


def test_the_mean_over_pairs_whatever_fits_into_a_part(monkeypatch):
    levels = torch.tensor([0, 10, 1, 30, 2, 60], dtype=torch.uint8)
    values = levels.view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    monkeypatch.setattr(diversity, "BATCH", 2)
    found = diversity.diversity(Brightness(), values, ["a", "a", "b", "b", "c", "c"], 3)
    assert found.value == pytest.approx((10 + 29 + 58) / 3)
    assert found.num == 3


def test_a_name_that_is_no_file_says_what_to_give(tmp_path):
    with pytest.raises(DataError, match=r"is not there; give the \.npz file, or hub:owner/name"):
        diversity._file(str(tmp_path / "none"))
    (tmp_path / "alexnet.npz").write_bytes(b"x")
    assert diversity._file(str(tmp_path)) == tmp_path / "alexnet.npz"
    with pytest.raises(DataError, match=r"is not LPIPS's AlexNet"):
        Lpips.load(str(tmp_path))
