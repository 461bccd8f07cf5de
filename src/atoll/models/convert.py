"""Foreign checkpoints in, Atoll experts out: DiT, diffusers' DiT and PixArt-α, or any by a mapping file.

A layout is a table from our names to theirs. `{i}` stands for the number of a block, `*` for weight and
bias, and several of their tensors are put under one another.
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from atoll.errors import CheckpointError
from atoll.models import adapt
from atoll.models.checkpoint import Blueprint
from atoll.models.costs import FREQUENCIES
from atoll.models.dit import DiT, positions
from atoll.models.foreign import Facts, Foreign, Tensors, detect, read

Keys = Mapping[str, str | Sequence[str]]

LAYOUTS: dict[str, Keys] = {
    "dit": {
        "trunk.embed.*": "x_embedder.proj.*",
        "trunk.time.hidden.*": "t_embedder.mlp.0.*",
        "trunk.time.out.*": "t_embedder.mlp.2.*",
        "trunk.condition.table.weight": "y_embedder.embedding_table.weight",
        "trunk.blocks.{i}.attention.qkv.*": "blocks.{i}.attn.qkv.*",
        "trunk.blocks.{i}.attention.out.*": "blocks.{i}.attn.proj.*",
        "trunk.blocks.{i}.up.*": "blocks.{i}.mlp.fc1.*",
        "trunk.blocks.{i}.down.*": "blocks.{i}.mlp.fc2.*",
        "trunk.blocks.{i}.modulation.layer.*": "blocks.{i}.adaLN_modulation.1.*",
        "trunk.modulation.layer.*": "final_layer.adaLN_modulation.1.*",
        "head.*": "final_layer.linear.*",
    },
    "diffusers-dit": {
        "trunk.embed.*": "pos_embed.proj.*",
        "trunk.time.hidden.*": "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.*",
        "trunk.time.out.*": "transformer_blocks.0.norm1.emb.timestep_embedder.linear_2.*",
        "trunk.condition.table.weight": (
            "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight"
        ),
        "trunk.blocks.{i}.attention.qkv.*": [
            f"transformer_blocks.{{i}}.attn1.to_{part}.*" for part in ("q", "k", "v")
        ],
        "trunk.blocks.{i}.attention.out.*": "transformer_blocks.{i}.attn1.to_out.0.*",
        "trunk.blocks.{i}.up.*": "transformer_blocks.{i}.ff.net.0.proj.*",
        "trunk.blocks.{i}.down.*": "transformer_blocks.{i}.ff.net.2.*",
        "trunk.blocks.{i}.modulation.layer.*": "transformer_blocks.{i}.norm1.linear.*",
        "trunk.modulation.layer.*": "proj_out_1.*",
        "head.*": "proj_out_2.*",
    },
    "diffusers-pixart": {
        "trunk.embed.*": "pos_embed.proj.*",
        "trunk.time.hidden.*": "adaln_single.emb.timestep_embedder.linear_1.*",
        "trunk.time.out.*": "adaln_single.emb.timestep_embedder.linear_2.*",
        "trunk.shared.*": "adaln_single.linear.*",
        "trunk.text.project.*": "caption_projection.linear_1.*",
        "trunk.text.deepen.1.*": "caption_projection.linear_2.*",
        "trunk.blocks.{i}.attention.qkv.*": [
            f"transformer_blocks.{{i}}.attn1.to_{part}.*" for part in ("q", "k", "v")
        ],
        "trunk.blocks.{i}.attention.out.*": "transformer_blocks.{i}.attn1.to_out.0.*",
        "trunk.blocks.{i}.cross.q.*": "transformer_blocks.{i}.attn2.to_q.*",
        "trunk.blocks.{i}.cross.kv.*": [f"transformer_blocks.{{i}}.attn2.to_{part}.*" for part in ("k", "v")],
        "trunk.blocks.{i}.cross.out.*": "transformer_blocks.{i}.attn2.to_out.0.*",
        "trunk.blocks.{i}.up.*": "transformer_blocks.{i}.ff.net.0.proj.*",
        "trunk.blocks.{i}.down.*": "transformer_blocks.{i}.ff.net.2.*",
        "trunk.blocks.{i}.modulation.table": "transformer_blocks.{i}.scale_shift_table",
        "trunk.modulation.table": "scale_shift_table",
        "head.*": "proj_out.*",
    },
}

HEADS = {1152: 16, 1024: 16, 768: 12, 384: 6}
"""Heads of the published DiT sizes, which their weights do not tell."""
LATENT_SCALE = 8
"""Pixels per latent along an axis of the autoencoder that PixArt-α was trained with."""


def convert(checkpoint: Path, mapping: Path | None, facts: Facts) -> tuple[Tensors, Blueprint]:
    """A foreign checkpoint as the weights and blueprint of an expert."""
    foreign = read(checkpoint)
    if mapping is not None:
        blueprint, keys, ignored = read_mapping(mapping)
        foreign = _prepared(foreign, dict(keys), ignored)
    else:
        layout = detect(foreign)
        blueprint, keys = BLUEPRINTS[layout](foreign, facts), LAYOUTS[layout]
        foreign = PREPARE[layout](foreign, blueprint)
    tensors, blueprint = _with_tables(foreign, rename(foreign, keys, blueprint), blueprint)
    objective = blueprint.objective.model_copy(
        update=facts.model_dump(include={"path", "prediction"}, exclude_none=True)
    )
    blueprint = blueprint.model_copy(update={"objective": objective})
    if facts.grid is not None:
        tensors, blueprint = adapt.to_grid(tensors, blueprint, (blueprint.shape[0], *facts.grid))
    return tensors, blueprint


def read_mapping(path: Path) -> tuple[Blueprint, Keys, list[str]]:
    """A TOML file with a blueprint; under [keys] our names and theirs; under `ignore` what is not needed."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        keys, ignored = tree.pop("keys"), tree.pop("ignore", [])
        return Blueprint.model_validate({"role": "expert", **tree}), keys, ignored
    except KeyError:
        raise CheckpointError(f"{path} has no [keys]; see docs/heterogeneous.md") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise CheckpointError(f"{path}: {' '.join(str(error).split())}") from None


def _prepared(foreign: Foreign, keys: dict[str, Any], ignored: Sequence[str]) -> Foreign:
    """Without what a mapping ignores, and with the positions that it names."""
    position = keys.get(adapt.POSITION)
    tensors = {key: value for key, value in foreign.tensors.items() if key not in (*ignored, position)}
    return replace(foreign, tensors=tensors, position=foreign.tensors.get(position) if position else None)


def expand(keys: Keys, depth: int) -> dict[str, list[str]]:
    """One entry per tensor of ours: the names of theirs that make it."""
    table: dict[str, list[str]] = {}
    for ours, theirs in keys.items():
        sources = [theirs] if isinstance(theirs, str) else list(theirs)
        for i in range(depth) if "{i}" in ours else [0]:
            for part in ("weight", "bias") if ours.endswith("*") else [""]:
                names = [name.replace("{i}", str(i)) for name in (ours, *sources)]
                mine, *yours = [name[:-1] + part if name.endswith("*") else name for name in names]
                table[mine] = yours
    return table


def rename(foreign: Foreign, keys: Keys, blueprint: Blueprint) -> Tensors:
    """Their tensors under our names, every one accounted for and of the right shape."""
    wanted = {key: tuple(value.shape) for key, value in blueprint.build().state_dict().items()}
    table = expand(keys, blueprint.network.depth)
    table.pop(adapt.POSITION, None)
    _complain(foreign, "is given names that such a network does not have:", sorted(table.keys() - wanted))
    used = {name for names in table.values() for name in names}
    _complain(foreign, "lacks", sorted(used - foreign.tensors.keys()))
    _complain(foreign, "has a surplus of", sorted(foreign.tensors.keys() - used))
    tensors = {ours: torch.cat([foreign.tensors[name] for name in names]) for ours, names in table.items()}
    channels, patch = blueprint.shape[0], math.prod(blueprint.patch)
    for ours, value in tensors.items():
        if ours == "trunk.embed.weight":
            value = value.flatten(1)
        if ours.startswith("head.") and len(value) == 2 * patch * channels:
            value = without_variance(value, patch, channels)
        if ours == adapt.TABLE and len(value) == blueprint.classes:
            value = torch.cat([value, value.mean(0, keepdim=True)])  # never told nothing: a class like any
        tensors[ours] = value.float()
    wrong = [name for name in tensors if tuple(tensors[name].shape) != wanted[name]]
    if wrong:
        ours, theirs = wrong[0], table[wrong[0]]
        raise CheckpointError(
            f"{foreign.origin}: {' + '.join(theirs)} is {list(tensors[ours].shape)} but its other tensors "
            f"ask for {list(wanted[ours])}" + (f" ({len(wrong) - 1} more)" if len(wrong) > 1 else "")
        )
    _complain(foreign, "gives nothing for", sorted(_needed(wanted) - tensors.keys()))
    return tensors


def _needed(wanted: Mapping[str, Any]) -> set[str]:
    """Our tensors that must come from theirs; tables are made, and no layout has a state for no text."""
    return wanted.keys() - {"trunk.position", "trunk.time.frequency", "trunk.text.null"}


def _complain(foreign: Foreign, problem: str, keys: Sequence[str]) -> None:
    if keys:
        some = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        raise CheckpointError(f"{foreign.origin} {problem} {some}")


def without_variance(head: Tensor, patch: int, channels: int) -> Tensor:
    """The rows of a last layer that predict; the others are a learned variance, which no velocity needs.

    Rows are ordered (place in the patch, channel) and the variance is the second half of the channels.
    """
    rows = head.view(patch, 2 * channels, *head.shape[1:])[:, :channels]
    return rows.reshape(patch * channels, *head.shape[1:])


def _with_tables(foreign: Foreign, tensors: Tensors, blueprint: Blueprint) -> tuple[Tensors, Blueprint]:
    """Keep positions and frequencies with the weights where they are not the ones we would compute."""
    network = blueprint.build()
    assert isinstance(network, DiT)
    if network.trunk.text is not None:
        tensors["trunk.text.null"] = torch.zeros(blueprint.text)  # they encode an empty text instead
    position = tensors.get(adapt.POSITION, foreign.position)
    made = network.trunk.position
    if position is not None and position.numel() != made.numel():
        raise CheckpointError(
            f"{foreign.origin} has {position.shape[-2]} positions, not {len(made)}; "
            "its samples are not square, or have another size"
        )
    position = made if position is None else position.view_as(made).float()
    if foreign.frequency is None and torch.allclose(position, made, atol=1e-4):
        return tensors, blueprint
    frequency = network.trunk.time.frequency if foreign.frequency is None else foreign.frequency
    tables = {adapt.POSITION: position, adapt.FREQUENCY: frequency}
    return {**tensors, **tables}, blueprint.model_copy(update={"tables": True})


def to_layout(tensors: Mapping[str, Tensor], blueprint: Blueprint, layout: str) -> Tensors:
    """The inverse of `rename`: an expert's weights under the names of a layout, without a variance."""
    weights: Tensors = {}
    for ours, theirs in expand(LAYOUTS[layout], blueprint.network.depth).items():
        if ours not in tensors:
            continue
        value = tensors[ours]
        if ours == "trunk.embed.weight":
            value = value.view(len(value), blueprint.shape[0], *blueprint.patch)
        weights |= dict(zip(theirs, value.chunk(len(theirs)), strict=True))
    return {name: value.contiguous() for name, value in weights.items()}


def _dit_blueprint(foreign: Foreign, facts: Facts) -> Blueprint:
    """What the original DiT's tensors tell (facebookresearch/DiT, models.py)."""
    width, channels, *patch = foreign.shape("x_embedder.proj.weight")
    heads = facts.heads or HEADS.get(width)
    if heads is None:
        raise CheckpointError(f"{foreign.origin} does not tell its number of heads; add --set heads=…")
    side = math.isqrt(foreign.shape("pos_embed")[-2])
    rows = foreign.shape("y_embedder.embedding_table.weight")[0]
    return Blueprint.model_validate(
        {
            "role": "expert",
            "network": {
                "width": width,
                "depth": foreign.count("blocks.{i}."),
                "heads": heads,
                "patch": patch,
                "mlp": foreign.shape("blocks.0.mlp.fc1.weight")[0] / width,
                "activation": "gelu-tanh",
            },
            "shape": (channels, *(side * size for size in patch)),
            "condition": "class",
            "classes": facts.classes or rows - 1,
            "objective": {"path": "linear-beta", "prediction": "noise"},
        }
    )


def _diffusers_network(foreign: Foreign, **more: Any) -> dict[str, Any]:
    """The size of a transformer by its config.json."""
    try:
        heads, size = foreign.config["num_attention_heads"], foreign.config["attention_head_dim"]
        patch, samples = foreign.config["patch_size"], foreign.config["sample_size"]
        channels = foreign.config["in_channels"]
    except KeyError as error:
        raise CheckpointError(
            f"{foreign.origin}: there is no config.json with {error} beside the weights; give the folder"
        ) from None
    network = {
        "width": heads * size,
        "depth": foreign.count("transformer_blocks.{i}."),
        "heads": heads,
        "patch": (patch, patch),
        "mlp": foreign.shape("transformer_blocks.0.ff.net.0.proj.weight")[0] / (heads * size),
        "activation": "gelu-tanh",
        **more,
    }
    return {"role": "expert", "network": network, "shape": (channels, samples, samples)}


def _diffusers_dit_blueprint(foreign: Foreign, facts: Facts) -> Blueprint:
    """DiTTransformer2DModel."""
    rows = foreign.shape("transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight")[0]
    return Blueprint.model_validate(
        {
            **_diffusers_network(foreign),
            "condition": "class",
            "classes": facts.classes or rows - 1,
            "objective": {"path": "linear-beta", "prediction": "noise"},
        }
    )


def _pixart_blueprint(foreign: Foreign, facts: Facts) -> Blueprint:
    """PixArtTransformer2DModel."""
    return Blueprint.model_validate(
        {
            **_diffusers_network(foreign, modulation="shared", text="cross-mlp"),
            "condition": "text",
            "text": foreign.shape("caption_projection.linear_1.weight")[1],
            "objective": {"path": "linear-beta", "prediction": "noise"},
        }
    )


def _position_apart(foreign: Foreign, blueprint: Blueprint) -> Foreign:
    """DiT stores its positions among the weights."""
    tensors = dict(foreign.tensors)
    return replace(foreign, position=tensors.pop("pos_embed"), tensors=tensors)


def _one_embedding(foreign: Foreign, blueprint: Blueprint) -> Foreign:
    """Diffusers gives every block a copy of the time and class embedding: keep the first of equal ones.

    Its frequencies of the time differ a little from DiT's own, which it was converted from.
    """
    tensors = dict(foreign.tensors)
    for key in foreign.tensors:
        copy = re.fullmatch(r"transformer_blocks\.([1-9]\d*)\.norm1\.emb\.(.*)", key)
        if copy:
            first = tensors[f"transformer_blocks.0.norm1.emb.{copy[2]}"]
            if not torch.equal(tensors.pop(key), first):
                raise CheckpointError(
                    f"{foreign.origin}: {key} differs from that of block 0; a DiT has one for all blocks"
                )
    half = FREQUENCIES // 2
    frequency = torch.exp(-math.log(10_000.0) * torch.arange(half) / (half - 1))
    return replace(foreign, tensors=tensors, frequency=frequency)


def _one_size(foreign: Foreign, blueprint: Blueprint) -> Foreign:
    """PixArt-α's positions; and at one size of pictures, what it is told of the size is a constant bias."""
    tensors = dict(foreign.tensors)
    samples, patch = blueprint.shape[-1], blueprint.patch[-1]
    stretch = foreign.config.get("interpolation_scale") or max(samples // 64, 1)
    side = samples // patch
    position = positions((side, side), blueprint.network.width, 1 / stretch)
    emb = "adaln_single.emb"
    if f"{emb}.resolution_embedder.linear_1.weight" in tensors:
        pixels = float(samples * LATENT_SCALE)
        embeddings = [
            _embed(tensors, f"{emb}.resolution_embedder", torch.tensor([pixels, pixels])),
            _embed(tensors, f"{emb}.aspect_ratio_embedder", torch.tensor([1.0])),
        ]
        bias = f"{emb}.timestep_embedder.linear_2.bias"
        tensors[bias] = tensors[bias].float() + torch.cat(embeddings)
    return replace(foreign, tensors=tensors, position=position)


def _embed(tensors: Tensors, name: str, values: Tensor) -> Tensor:
    """One of PixArt-α's embeddings of numbers, taken out of the tensors."""
    half = FREQUENCIES // 2
    angle = values[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(half) / half)
    hidden = torch.cat([angle.cos(), angle.sin()], dim=1)
    layers = [
        [tensors.pop(f"{name}.linear_{n}.{part}").float() for part in ("weight", "bias")] for n in (1, 2)
    ]
    return F.linear(F.silu(F.linear(hidden, *layers[0])), *layers[1]).flatten()


BLUEPRINTS = {
    "dit": _dit_blueprint,
    "diffusers-dit": _diffusers_dit_blueprint,
    "diffusers-pixart": _pixart_blueprint,
}
PREPARE = {"dit": _position_apart, "diffusers-dit": _one_embedding, "diffusers-pixart": _one_size}
