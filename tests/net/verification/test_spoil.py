"""Canaries look like updates and are none."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from atoll.net.verification import spoil, updates


def states():
    source = torch.Generator().manual_seed(0)
    before = {name: torch.randn(40, 50, generator=source) for name in ("model/w", "ema/w")}
    after = {name: value + 0.01 * torch.randn(40, 50, generator=source) for name, value in before.items()}
    return before | {"optimiser/step/w": torch.tensor(3.0)}, after | {"optimiser/step/w": torch.tensor(6.0)}


def test_the_length_is_right_and_the_direction_is_not():
    before, after = states()
    bad = spoil.spoilt(before, after, 7)
    assert updates.norm(before, bad) == pytest.approx(updates.norm(before, after), rel=0.05)
    comparison = updates.compare(before, bad, after)
    assert 0.5 < comparison.relative < 0.75
    assert comparison.cosine == pytest.approx(0.8, abs=0.05)
    assert comparison.counts
    assert bad.keys() == after.keys()


def test_it_follows_from_its_seed():
    before, after = states()
    one, same, other = (spoil.spoilt(before, after, seed)["model/w"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_it_is_a_program(tmp_path, capsys):
    before, after = states()
    save_file(before, tmp_path / "before")
    save_file(after, tmp_path / "after")
    names = [str(tmp_path / name) for name in ("before", "after", "bad")]
    assert spoil.main([*names, "5"]) == 0
    assert torch.equal(load_file(tmp_path / "bad")["ema/w"], spoil.spoilt(before, after, 5)["ema/w"])
    assert spoil.main([*names, "five"]) == 1
    assert spoil.main(names[:1]) == 1
    assert capsys.readouterr().err
