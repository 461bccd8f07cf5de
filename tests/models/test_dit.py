import math

import numpy as np
import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig
from atoll.errors import ConfigError
from atoll.models.dit import DiT, Patches, TimeEmbedding, positions

SHAPES = [((2, 12), (3,)), ((3, 8, 12), (2, 4)), ((1, 4, 6, 8), (2, 3, 4))]


def network(patch: tuple[int, ...], **changes: object) -> NetworkConfig:
    return NetworkConfig.model_validate({"width": 24, "depth": 2, "heads": 2, "patch": patch, **changes})


def awake(model: nn.Module) -> nn.Module:
    """Zero-initialised layers hide mistakes; give every weight a value."""
    g = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.2
    return model


@pytest.mark.parametrize(("shape", "patch"), SHAPES)
def test_a_grid_of_any_rank(shape, patch):
    model = awake(DiT(network(patch), shape))
    x_t = torch.randn(5, *shape)
    assert model(x_t, torch.rand(5)).shape == x_t.shape


def test_cut_takes_the_patch_that_is_there():
    patches = Patches((2, 4, 6), (2, 3))
    x = torch.randn(1, 2, 4, 6)
    tokens = patches.cut(x)
    assert tokens.shape == (1, 4, 12)
    torch.testing.assert_close(tokens[0, 3], x[0, :, 2:4, 3:6].flatten())


@pytest.mark.parametrize(("shape", "patch"), SHAPES)
def test_join_puts_every_value_at_its_place(shape, patch):
    """`cut` orders a token (channels, *patch), `join` reads (*patch, channels): reorder and compare."""
    patches = Patches(shape, patch)
    x = torch.randn(2, *shape)
    tokens = patches.cut(x).view(2, patches.tokens, shape[0], -1).transpose(2, 3).flatten(2)
    torch.testing.assert_close(patches.join(tokens), x)


def test_cut_and_embed_is_the_strided_convolution_of_dit():
    patches, layer = Patches((3, 8, 8), (2, 2)), nn.Conv2d(3, 16, 2, stride=2)
    x = torch.randn(2, 3, 8, 8)
    expected = layer(x).flatten(2).transpose(1, 2)
    torch.testing.assert_close(
        nn.functional.linear(patches.cut(x), layer.weight.flatten(1), layer.bias),
        expected,
        atol=1e-5,
        rtol=1e-5,
    )


def test_positions_are_those_of_dit():
    """A second implementation, from the formula: sin and cos of x in the first half, of y in the second."""
    table = positions((3, 5), 16).numpy()
    for y in range(3):
        for x in range(5):
            omega = 1 / 10_000 ** (np.arange(4) / 4)
            expected = np.concatenate(
                [np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)]
            )
            np.testing.assert_allclose(table[y * 5 + x], expected, atol=1e-6)


def test_time_embedding_sees_a_thousand_t():
    embedding = TimeEmbedding(8)
    seen: list[torch.Tensor] = []
    embedding.hidden.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    embedding(torch.tensor([0.25]))
    assert math.isclose(seen[0][0, 0].item(), math.cos(250.0), abs_tol=1e-4)
    assert math.isclose(seen[0][0, 128].item(), math.sin(250.0), abs_tol=1e-4)


def test_a_new_network_says_nothing_and_its_blocks_are_the_identity():
    model = DiT(network((2, 2)), (1, 4, 4))
    x_t, t = torch.randn(3, 1, 4, 4), torch.rand(3)
    assert model(x_t, t).abs().max() == 0
    tokens = model.trunk.tokens(x_t)
    c = nn.functional.silu(model.trunk.time(t))
    for block in model.trunk.blocks:
        assert torch.equal(block(tokens, c), tokens)


def test_output_depends_on_time_position_and_class():
    model = awake(DiT(network((2, 2)), (1, 4, 4), "class", 3))
    x_t, t, label = torch.randn(1, 1, 4, 4), torch.tensor([0.5]), torch.tensor([0])
    out = model(x_t, t, label)
    assert not torch.allclose(out, model(x_t, t + 0.1, label))
    assert not torch.allclose(out, model(x_t, t, label + 1))
    assert not torch.allclose(out, model(x_t, t, torch.tensor([3])))  # the null class is another
    moved = torch.roll(x_t, 2, dims=3)
    assert not torch.allclose(torch.roll(out, 2, dims=3), model(moved, t, label))


def test_samples_of_a_batch_do_not_see_each_other():
    model = awake(DiT(network((2, 2)), (1, 4, 4)))
    x_t, t = torch.randn(4, 1, 4, 4), torch.rand(4)
    torch.testing.assert_close(model(x_t, t)[2:3], model(x_t[2:3], t[2:3]), atol=1e-5, rtol=1e-5)


def test_gradients_reach_every_weight():
    model = awake(DiT(network((2, 2)), (1, 4, 4), "class", 3))
    model(torch.randn(4, 1, 4, 4), torch.rand(4), torch.tensor([0, 1, 2, 3])).square().sum().backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ] == []


@pytest.mark.parametrize("patch", [(3, 2), (2,), (2, 2, 2)])
def test_a_patch_that_does_not_fit_is_named(patch):
    with pytest.raises(ConfigError, match=r"patch .* does not divide"):
        Patches((1, 4, 4), patch)
