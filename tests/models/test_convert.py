"""Published layouts come in and compute what they did: against diffusers' own forward, tensor by tensor."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atoll.errors import CheckpointError
from atoll.models import convert
from atoll.models.checkpoint import Blueprint
from atoll.models.conditions import TextCondition
from atoll.models.foreign import Facts, Foreign, detect

WIDTH, DEPTH, HEADS = 48, 2, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def awake(module: nn.Module) -> nn.Module:
    """Weights of ordinary size everywhere, zero-initialised ones too."""
    g = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.08
    return module.eval()


def dit_weights(channels: int = 4, classes: int = 10, side: int = 4) -> dict[str, Tensor]:
    """The original DiT's state dict, patch 2, with a learned variance."""
    from atoll.models.dit import positions

    shapes: dict[str, tuple[int, ...]] = {
        "x_embedder.proj.weight": (WIDTH, channels, 2, 2),
        "x_embedder.proj.bias": (WIDTH,),
        "y_embedder.embedding_table.weight": (classes + 1, WIDTH),
    }
    layers = {
        "t_embedder.mlp.0": (WIDTH, 256),
        "t_embedder.mlp.2": (WIDTH, WIDTH),
        "final_layer.linear": (4 * 2 * channels, WIDTH),
        "final_layer.adaLN_modulation.1": (2 * WIDTH, WIDTH),
    }
    for i in range(DEPTH):
        layers |= {
            f"blocks.{i}.attn.qkv": (3 * WIDTH, WIDTH),
            f"blocks.{i}.attn.proj": (WIDTH, WIDTH),
            f"blocks.{i}.mlp.fc1": (4 * WIDTH, WIDTH),
            f"blocks.{i}.mlp.fc2": (WIDTH, 4 * WIDTH),
            f"blocks.{i}.adaLN_modulation.1": (6 * WIDTH, WIDTH),
        }
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors = {name: 0.1 * random(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    return {**tensors, "pos_embed": positions((side, side), WIDTH)[None]}


def dit_forward(w: dict[str, Tensor], x: Tensor, index: Tensor, label: Tensor) -> Tensor:
    """DiT.forward of facebookresearch/DiT, written out once more from its source."""

    def layer(name: str, value: Tensor) -> Tensor:
        return nn.functional.linear(value, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(value: Tensor) -> Tensor:
        return nn.functional.layer_norm(value, (WIDTH,), eps=1e-6)

    tokens = nn.functional.conv2d(x, w["x_embedder.proj.weight"], w["x_embedder.proj.bias"], stride=2)
    side = tokens.shape[-1]
    tokens = tokens.flatten(2).transpose(1, 2) + w["pos_embed"]
    angle = index[:, None] * torch.exp(-math.log(10000) * torch.arange(128) / 128)
    emb = torch.cat([angle.cos(), angle.sin()], dim=1)
    c = layer("t_embedder.mlp.2", nn.functional.silu(layer("t_embedder.mlp.0", emb)))
    c = nn.functional.silu(c + w["y_embedder.embedding_table.weight"][label])
    for i in range(DEPTH):
        parts = layer(f"blocks.{i}.adaLN_modulation.1", c)[:, None].chunk(6, dim=2)
        h = norm(tokens) * (1 + parts[1]) + parts[0]
        qkv = layer(f"blocks.{i}.attn.qkv", h).view(len(x), -1, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = ((q / math.sqrt(WIDTH / HEADS)) @ k.transpose(2, 3)).softmax(3) @ v
        tokens = tokens + parts[2] * layer(f"blocks.{i}.attn.proj", a.transpose(1, 2).flatten(2))
        h = norm(tokens) * (1 + parts[4]) + parts[3]
        h = nn.functional.gelu(layer(f"blocks.{i}.mlp.fc1", h), approximate="tanh")
        tokens = tokens + parts[5] * layer(f"blocks.{i}.mlp.fc2", h)
    shift, scale = layer("final_layer.adaLN_modulation.1", c)[:, None].chunk(2, dim=2)
    out = layer("final_layer.linear", norm(tokens) * (1 + scale) + shift)
    out = out.view(len(x), side, side, 2, 2, -1)
    return torch.einsum("nhwpqc->nchpwq", out).reshape(len(x), -1, 2 * side, 2 * side)


def build(tensors: dict[str, Tensor], blueprint: Blueprint) -> nn.Module:
    network = blueprint.build()
    network.load_state_dict(tensors)
    return network.eval()


@pytest.fixture
def dit(tmp_path: Path) -> Path:
    save_file(dit_weights(), tmp_path / "dit.safetensors")
    return tmp_path / "dit.safetensors"


def test_the_original_dit(dit):
    tensors, blueprint = convert.convert(dit, None, Facts(heads=HEADS))
    assert blueprint.network.model_dump(include={"width", "depth", "heads", "patch", "mlp"}) == {
        "width": WIDTH,
        "depth": DEPTH,
        "heads": HEADS,
        "patch": (2, 2),
        "mlp": 4.0,
    }
    assert (blueprint.shape, blueprint.condition, blueprint.classes) == ((4, 8, 8), "class", 10)
    assert (blueprint.objective.path, blueprint.objective.prediction) == ("linear-beta", "noise")
    assert not blueprint.tables
    x, index, label = random(3, 4, 8, 8), torch.tensor([0.0, 512.0, 999.0]), torch.tensor([0, 9, 10])
    expected = dit_forward(dit_weights(), x, index, label)[:, :4]
    found = build(tensors, blueprint)(x, index / 1000, label)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_only_the_variance_is_dropped():
    """Rows are (place in the patch, channel): number them and look which are left."""
    rows = torch.arange(4 * 6).view(-1, 1)  # 4 places, 3 channels and 3 variances
    kept = convert.without_variance(rows, 4, 3).flatten().tolist()
    assert kept == [0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20]


def test_a_learned_position_table_travels_with_the_weights(tmp_path):
    weights = {**dit_weights(), "pos_embed": random(1, 16, WIDTH)}
    save_file(weights, tmp_path / "a.safetensors")
    tensors, blueprint = convert.convert(tmp_path / "a.safetensors", None, Facts(heads=HEADS))
    assert blueprint.tables
    x, index, label = random(1, 4, 8, 8), torch.tensor([300.0]), torch.tensor([1])
    expected = dit_forward(weights, x, index, label)[:, :4]
    torch.testing.assert_close(
        build(tensors, blueprint)(x, index / 1000, label), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks.1.attn.proj.bias": None}, r"lacks blocks\.1\.attn\.proj\.bias"),
        ({"blocks.0.attn.q_norm.weight": (4,)}, r"surplus of blocks\.0\.attn\.q_norm\.weight"),
        ({"blocks.1.mlp.fc2.weight": (WIDTH, 7)}, r"blocks\.1\.mlp\.fc2\.weight is \[48, 7\].*\[48, 192\]"),
        ({"pos_embed": (1, 15, WIDTH)}, "has 15 positions, not 9"),
        ({"x_embedder.proj.weight": None}, "no layout that is known"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, said):
    weights = dit_weights()
    for name, shape in change.items():
        weights.pop(name, None)
        if shape is not None:
            weights[name] = random(*shape)
    save_file(weights, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=said) as caught:
        convert.convert(tmp_path / "a.safetensors", None, Facts(heads=HEADS))
    assert "\n" not in str(caught.value)


def test_heads_cannot_be_guessed_for_an_unknown_width(dit):
    with pytest.raises(CheckpointError, match="--set heads"):
        convert.convert(dit, None, Facts())


MAPPING = """
ignore = ["step"]
shape = [4, 8, 8]
condition = "class"
classes = 10
[network]
width = 48
depth = 2
heads = 4
patch = [2, 2]
activation = "gelu-tanh"
[objective]
path = "scaled-linear"
prediction = "v"
[keys]
"""


def test_a_mapping_file_says_where_everything_is(tmp_path):
    """The original weights under names of one's own, with q, k and v apart."""
    keys, weights = dict(convert.LAYOUTS["dit"]), dit_weights()
    keys["trunk.blocks.{i}.attention.qkv.*"] = [f"layer{{i}}/{part}.*" for part in "qkv"]
    for i in range(DEPTH):
        for kind in ("weight", "bias"):
            value = weights.pop(f"blocks.{i}.attn.qkv.{kind}")
            weights |= {
                f"layer{i}/{part}.{kind}": one.contiguous()
                for part, one in zip("qkv", value.chunk(3), strict=True)
            }
    keys["trunk.position"] = "pos_embed"
    weights["step"] = torch.zeros(1)
    save_file(weights, tmp_path / "a.safetensors")
    lines = [f"{json.dumps(ours)} = {json.dumps(theirs)}" for ours, theirs in keys.items()]
    (tmp_path / "map.toml").write_text(MAPPING + "\n".join(lines))
    tensors, blueprint = convert.convert(tmp_path / "a.safetensors", tmp_path / "map.toml", Facts())
    assert (blueprint.objective.path, blueprint.objective.prediction) == ("scaled-linear", "v")
    x, index, label = random(2, 4, 8, 8), torch.tensor([3.0, 700.0]), torch.tensor([1, 10])
    expected = dit_forward(dit_weights(), x, index, label)[:, :4]
    torch.testing.assert_close(
        build(tensors, blueprint)(x, index / 1000, label), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("text", ["shape = [4, 8, 8]", "[keys", "[keys]\nshape = 1"])
def test_a_wrong_mapping_file_is_named(dit, tmp_path, text):
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(CheckpointError, match=r"map\.toml"):
        convert.convert(dit, tmp_path / "map.toml", Facts())


@pytest.fixture(scope="module")
def diffusers() -> Any:
    return pytest.importorskip("diffusers")


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def tie(model: Any) -> Any:
    """Published DiT weights have the same embedding of time and class in every block."""
    for block in model.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())
    return model


def diffusers_dit(diffusers: Any, **changes: Any) -> Any:
    settings = {
        "num_attention_heads": HEADS,
        "attention_head_dim": WIDTH // HEADS,
        "in_channels": 4,
        "out_channels": 8,
        "num_layers": DEPTH,
        "sample_size": 8,
        "num_embeds_ada_norm": 10,
        **changes,
    }
    return awake(diffusers.DiTTransformer2DModel(**settings))


def test_the_dit_of_diffusers(diffusers, tmp_path):
    model = tie(diffusers_dit(diffusers))
    tensors, blueprint = convert.convert(saved(model, tmp_path / "dit"), None, Facts())
    assert (blueprint.shape, blueprint.classes) == ((4, 8, 8), 10)
    x, index, label = random(3, 4, 8, 8), torch.tensor([0, 512, 999]), torch.tensor([0, 9, 10])
    with torch.no_grad():
        expected = model(x, index, label).sample[:, :4]
        found = build(tensors, blueprint)(x, index / 1000, label)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_blocks_with_embeddings_of_their_own_are_refused(diffusers, tmp_path):
    folder = saved(diffusers_dit(diffusers), tmp_path / "dit")
    with pytest.raises(CheckpointError, match=r"transformer_blocks\.1\.norm1\.emb.*differs"):
        convert.convert(folder, None, Facts())


def test_a_folder_without_its_config(diffusers, tmp_path):
    folder = saved(tie(diffusers_dit(diffusers)), tmp_path / "dit")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        convert.convert(folder, None, Facts())


@pytest.mark.parametrize("size", [8, 128])
def test_pixart(diffusers, tmp_path, size):
    """At 128, as in the published 1024 px model, with stretched positions and told sizes."""
    model = awake(
        diffusers.PixArtTransformer2DModel(
            num_attention_heads=HEADS,
            attention_head_dim=WIDTH // HEADS,
            num_layers=DEPTH,
            cross_attention_dim=WIDTH,
            sample_size=size,
            patch_size=2 if size == 8 else 16,
            caption_channels=20,
            norm_eps=1e-6,
        )
    )
    tensors, blueprint = convert.convert(saved(model, tmp_path / "pixart"), None, Facts())
    assert (blueprint.condition, blueprint.text) == ("text", 20)
    assert blueprint.network.modulation == "shared"
    x, index = random(2, 4, size, size), torch.tensor([20, 900])
    tokens, mask = random(2, 5, 20), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    pixels = 8.0 * size
    told = {"resolution": torch.tensor([[pixels, pixels]] * 2), "aspect_ratio": torch.ones(2, 1)}
    with torch.no_grad():
        expected = model(
            x,
            tokens,
            index,
            added_cond_kwargs=told if size == 128 else {"resolution": None, "aspect_ratio": None},
            encoder_attention_mask=mask.long(),
        ).sample[:, :4]
        text = TextCondition(tokens, mask, tokens.mean(1))
        found = build(tensors, blueprint)(x, index / 1000, text)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["dit", "diffusers-dit", "diffusers-pixart"])
def test_there_and_back(layout, tmp_path):
    """An expert of ours under the names of a layout, and from there, is the same expert."""
    text = layout == "diffusers-pixart"
    blueprint = Blueprint.model_validate(
        {
            "role": "expert",
            "network": {
                "width": WIDTH,
                "depth": DEPTH,
                "heads": HEADS,
                "patch": [2, 2],
                "modulation": "shared" if text else "block",
                "text": "cross-mlp",
            },
            "shape": [3, 8, 8],
            **({"condition": "text", "text": 20} if text else {"condition": "class", "classes": 5}),
        }
    )
    tensors = dict(awake(blueprint.build()).state_dict())
    theirs = convert.to_layout(tensors, blueprint, layout)
    foreign = Foreign(tmp_path, theirs, {})
    again = convert.rename(foreign, convert.LAYOUTS[layout], blueprint)
    assert again.keys() == tensors.keys() - {"trunk.text.null"}
    assert all(torch.equal(again[name], tensors[name]) for name in again)
    if not text:
        assert detect(foreign) == layout
