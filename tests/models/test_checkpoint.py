import json
import os

import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig
from atoll.errors import CorruptError
from atoll.models import checkpoint
from tests.models.test_dit import awake

NETWORK = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))


@pytest.fixture
def written(tmp_path):
    blueprint = checkpoint.Blueprint(
        role="expert", network=NETWORK, shape=(1, 4, 4), condition="class", classes=3, clusters=2
    )
    model = awake(blueprint.build())
    checkpoint.write_tensors(tmp_path / "weights.safetensors", dict(model.state_dict()))
    (tmp_path / "config.json").write_text(json.dumps(blueprint.model_dump(mode="json")))
    return tmp_path, model, blueprint


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_who_may_read_other_files_may_read_weights(tmp_path, mask):
    """As colleagues who share a disk expect."""
    before = os.umask(mask)
    try:
        (tmp_path / "plain").write_text("x")
        checkpoint.write_tensors(tmp_path / "weights", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_is_read_computes_what_was_written(written):
    folder, model, blueprint = written
    again, found = checkpoint.load(folder / "weights.safetensors", folder / "config.json")
    assert found == blueprint
    x_t, t, label = torch.randn(2, 1, 4, 4), torch.rand(2), torch.tensor([0, 3])
    assert torch.equal(model(x_t, t, label), again(x_t, t, label))
    assert not again.training
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_weights_of_another_network_are_refused_in_one_line(written):
    folder, _, blueprint = written
    other = blueprint.model_copy(update={"classes": 5})
    (folder / "config.json").write_text(json.dumps(other.model_dump(mode="json")))
    with pytest.raises(CorruptError, match="does not fit") as caught:
        checkpoint.load(folder / "weights.safetensors", folder / "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["{", '{"role": "expert"}', '{"role": "cook"}'])
def test_a_damaged_config_is_named(written, damage):
    folder, _, _ = written
    (folder / "config.json").write_text(damage)
    with pytest.raises(CorruptError, match=r"config\.json"):
        checkpoint.load(folder / "weights.safetensors", folder / "config.json")


def test_a_truncated_file_is_named(written):
    folder, _, _ = written
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CorruptError, match=r"weights\.safetensors"):
        checkpoint.load(weights, folder / "config.json")


def test_half_precision_survives(tmp_path):
    value = torch.randn(3, 4).bfloat16()
    checkpoint.write_tensors(tmp_path / "a.safetensors", {"a": value.t()})
    assert torch.equal(checkpoint.read_tensors(tmp_path / "a.safetensors")["a"], value.t())


def test_a_network_without_storage_has_no_initial_weights(monkeypatch):
    """For `normal_` on the meta device torch imports its compiler, which takes a second."""

    def refuse(*given, **named):
        raise AssertionError("initial weights of a network that has none")

    blueprints = [
        checkpoint.Blueprint(role=role, network=NETWORK, shape=(1, 4, 4), clusters=2)
        for role in ("expert", "router")
    ]
    monkeypatch.setattr(nn.init, "normal_", refuse)
    for blueprint in blueprints:
        with torch.device("meta"):
            assert next(blueprint.build().parameters()).is_meta
        with pytest.raises(AssertionError, match="initial weights"):
            blueprint.build()
