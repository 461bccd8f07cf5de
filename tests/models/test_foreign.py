"""Checkpoints of others are read whatever wraps them, and refused in words."""

import pytest
from safetensors.torch import save_file

from atoll.errors import CheckpointError
from atoll.models import foreign
from tests.models.test_convert import dit_weights


@pytest.mark.parametrize("prefix", ["module.", "ema.model.", "_orig_mod."])
def test_names_with_a_wrapper_before_them(tmp_path, prefix):
    save_file({prefix + k: v for k, v in dit_weights().items()}, tmp_path / "a.safetensors")
    assert foreign.read(tmp_path / "a.safetensors").tensors.keys() == dit_weights().keys()


@pytest.mark.parametrize("name", ["nothing.safetensors", "DiT-XL-2.pt"])
def test_other_files_are_refused(tmp_path, name):
    if name.endswith(".pt"):
        (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=name):
        foreign.read(tmp_path / name)


def test_a_damaged_file_is_named(tmp_path):
    dit = tmp_path / "dit.safetensors"
    save_file(dit_weights(), dit)
    dit.write_bytes(dit.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"dit\.safetensors cannot be read"):
        foreign.read(dit)


def test_tensors_are_counted_and_known_by_their_shape(tmp_path):
    save_file(dit_weights(), tmp_path / "a.safetensors")
    read = foreign.read(tmp_path / "a.safetensors")
    assert read.count("blocks.{i}.attn.proj.bias") == 2
    assert read.shape("blocks.0.attn.proj.bias") == (48,)
    with pytest.raises(CheckpointError, match="lacks nothing"):
        read.shape("nothing")
