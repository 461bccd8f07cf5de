import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig
from atoll.errors import ConfigError
from atoll.models import conditions
from atoll.models.conditions import TextCondition
from atoll.models.dit import DiT, Patches, TimeEmbedding, positions
from atoll.models.router import Router

SHAPES = [((2, 12), (3,)), ((3, 8, 12), (2, 4)), ((1, 4, 6, 8), (2, 3, 4))]


def network(patch: tuple[int, ...], **changes: object) -> NetworkConfig:
    return NetworkConfig.model_validate({"width": 24, "depth": 2, "heads": 2, "patch": patch, **changes})


def awake(model: Any) -> Any:
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


@pytest.mark.parametrize("modulation", ["block", "shared"])
def test_a_new_network_says_nothing_and_its_blocks_are_the_identity(modulation):
    model = DiT(network((2, 2), modulation=modulation), (1, 4, 4))
    x_t, t = torch.randn(3, 1, 4, 4), torch.rand(3)
    assert model(x_t, t).abs().max() == 0
    tokens = model.trunk.tokens(x_t)
    c, _ = model.trunk.modulators(model.trunk.time(t))
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


def captions(batch: int, length: int = 3, width: int = 6) -> TextCondition:
    g = torch.Generator().manual_seed(1)
    tokens, pooled = torch.randn(batch, length, width, generator=g), torch.randn(batch, width, generator=g)
    return TextCondition(tokens, torch.arange(length).expand(batch, -1) < length - 1, pooled)


EVERY_OPTION = [
    {"modulation": modulation, "text": text, "qk_norm": norm}
    for modulation in ("block", "shared")
    for text in ("cross", "pooled")
    for norm in (False, True)
]


@pytest.mark.parametrize("options", EVERY_OPTION, ids=str)
def test_a_text_is_heard_by_every_kind_of_network(options):
    """Every token that is there counts, padding does not, and every weight learns."""
    model = awake(DiT(network((2, 2), **options), (1, 4, 4), "text", text=6))
    x_t, t, told = torch.randn(2, 1, 4, 4), torch.rand(2), captions(2)
    out = model(x_t, t, told)
    assert not torch.allclose(out, model(x_t, t, conditions.null(told, 0)))
    padding = torch.where(told.mask[..., None], told.tokens, 99.0)
    torch.testing.assert_close(out, model(x_t, t, TextCondition(padding, told.mask, told.pooled)))
    if options["text"] == "cross":
        longer = conditions.concatenate([told, captions(1, 5)])[:2]
        torch.testing.assert_close(out, model(x_t, t, longer))
    seen = conditions.hide(told, torch.tensor([True, False]), 0)
    model(x_t, t, seen).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_the_text_is_silent_at_first():
    """A zero output projection: adding a text to a trained network changes nothing until it learns."""
    block: Any = DiT(network((2, 2)), (1, 4, 4), "text", text=6).trunk.blocks[0]
    for parameter in (block.modulation.layer.weight, block.modulation.layer.bias):
        nn.init.normal_(parameter)
    x, c = torch.randn(2, 4, 24), torch.randn(2, 24)
    memory, mask = torch.randn(2, 3, 24), torch.ones(2, 1, 1, 3, dtype=torch.bool)
    heard = block(x, c, memory, mask)
    cross, block.cross = block.cross, None
    assert torch.equal(heard, block(x, c))
    assert cross.out.weight.abs().sum() == 0


def test_shared_modulation_by_hand():
    """Tables of zero, and one table: the sum of the shared layer and the block's own."""
    model = awake(DiT(network((2, 2), modulation="shared"), (1, 4, 4)))
    c = torch.randn(2, 24)
    shared, last = model.trunk.modulators(c)
    expected = model.trunk.shared(nn.functional.silu(c))
    torch.testing.assert_close(shared, expected)
    parts = model.trunk.blocks[1].modulation(shared)
    table = model.trunk.blocks[1].modulation.table
    for index, part in enumerate(parts):
        torch.testing.assert_close(part[:, 0], expected[:, 24 * index : 24 * index + 24] + table[index])
    for index, part in enumerate(model.trunk.modulation(last)):
        torch.testing.assert_close(part[:, 0], c + model.trunk.modulation.table[index])


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


POSITIONS = 256  # tokens of a 32x32 latent in patches of 2


def test_parameters_of_the_published_expert():
    """Paris' XL/2 with AdaLN-Single and 768-d text has 605,970,448; every difference by name."""
    with torch.device("meta"):
        model = DiT(NetworkConfig(size="XL/2", modulation="shared"), (4, 32, 32), "text", text=768)
    stored_positions = POSITIONS * 1152  # theirs are weights, ours are computed
    learned_null_text = 768  # ours is a learned state, theirs the encoder's empty text
    assert parameters(model) == 605_970_448 - stored_positions + learned_null_text


def test_parameters_of_the_published_router():
    """Paris' router B/2 has 129,136,904; every difference by name."""
    with torch.device("meta"):
        model = Router(NetworkConfig(size="B/2"), (4, 32, 32), clusters=8)
    stored_positions = POSITIONS * 768  # theirs are weights, ours are computed
    hidden_head_layer = (
        768 * 768 + 768 + 2 * 768
    )  # their head: linear, norm, linear; ours, like DDM's: linear
    last_modulation = 768 * 2 * 768 + 2 * 768  # ours modulates the last norm too, as DiT does
    assert parameters(model) == 129_136_904 - stored_positions - hidden_head_layer + last_modulation


def test_parameters_of_dit():
    """DiT-XL/2 on ImageNet has 675,129,632; every difference by name."""
    with torch.device("meta"):
        model = DiT(NetworkConfig(size="XL/2"), (4, 32, 32), "class", classes=1000)
    stored_positions = POSITIONS * 1152
    learned_variance = 1152 * 16 + 16  # DiT predicts a variance for each value too
    assert parameters(model) == 675_129_632 - stored_positions - learned_variance


@pytest.mark.parametrize(("size", "width", "depth", "heads"), [("S/8", 384, 12, 6), ("L/4", 1024, 24, 16)])
def test_sizes_by_name(size, width, depth, heads):
    named = NetworkConfig(size=size)
    assert (named.width, named.depth, named.heads) == (width, depth, heads)
    assert named.patch == (int(size[2:]),) * 2
    assert NetworkConfig(size=size, depth=3).depth == 3
    assert NetworkConfig.model_validate(named.model_dump()) == named


def test_a_size_that_nobody_knows():
    with pytest.raises(ValueError, match="size"):
        NetworkConfig(size="XXL/2")


@pytest.mark.parametrize("patch", [(3, 2), (2,), (2, 2, 2)])
def test_a_patch_that_does_not_fit_is_named(patch):
    with pytest.raises(ConfigError, match=r"patch = .* would fit"):
        Patches((1, 4, 4), patch)
