"""An expert's weights made to fit another network: another grid, condition, modulation or objective."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.config import NetworkConfig
from atoll.errors import ConfigError
from atoll.models import checkpoint
from atoll.models.checkpoint import Blueprint, Objective
from atoll.models.dit import TIME_SCALE, DiT, positions

Tensors = dict[str, Tensor]
Conversion = Literal["none", "exact", "published"]

TABLE = "trunk.condition.table.weight"
POSITION = "trunk.position"
FREQUENCY = "trunk.time.frequency"
FOLD = "trunk.time.out.bias"
PROBES = 64
"""Times over which modulations are averaged when they are put together."""


def start(
    weights: Path, config: Path, want: Blueprint, conversion: Conversion, fresh: nn.Module
) -> tuple[nn.Module, Blueprint]:
    """Another expert, made to fit; what it has no weights for comes from the fresh network."""
    have, tensors = checkpoint.read_blueprint(config), checkpoint.read_tensors(weights)
    tensors, got = fit(tensors, have, want, conversion, dict(fresh.state_dict()))
    network = got.build()
    network.load_state_dict(tensors)
    return network, got


def fit(
    tensors: Tensors, have: Blueprint, want: Blueprint, conversion: Conversion, fresh: Mapping[str, Tensor]
) -> tuple[Tensors, Blueprint]:
    """Weights of one blueprint as weights of another, and the blueprint that they really have."""
    _check(have, want)
    if have.shape != want.shape:
        tensors, have = to_grid(tensors, have, want.shape)
    if (have.condition, have.classes, have.text) != (want.condition, want.classes, want.text):
        tensors = to_condition(tensors, have, want)
    if have.network.modulation != want.network.modulation:
        tensors = to_shared(tensors, have)
    got = want.model_copy(update={"tables": have.tables})
    predicts = have.objective.path, have.objective.prediction
    if predicts == (want.objective.path, want.objective.prediction):
        got = got.model_copy(update={"objective": have.objective})
    else:
        tensors, objective = to_objective(tensors, have.objective, conversion)
        got = got.model_copy(update={"objective": objective})
    names = got.build().state_dict().keys()
    return {name: tensors[name] if name in tensors else fresh[name] for name in names}, got


def _check(have: Blueprint, want: Blueprint) -> None:
    """The networks must be the same but for what can be adapted."""
    adaptable = {"size", "modulation", "text"}
    names = [name for name in NetworkConfig.model_fields if name not in adaptable]
    differ = [name for name in names if getattr(have.network, name) != getattr(want.network, name)]
    if have.role != "expert":
        raise ConfigError("expert.init is a router; give the folder of an expert")
    if differ:
        settings = ", ".join(f"{name} = {_toml(getattr(have.network, name))}" for name in differ)
        raise ConfigError(f"expert.init has another network; set in [expert]: {settings}")
    if have.shape[0] != want.shape[0] or len(have.shape) != len(want.shape):
        raise ConfigError(
            f"expert.init is for samples {list(have.shape)} (channels, *grid), not {list(want.shape)}"
        )
    if have.network.modulation == "shared" and want.network.modulation == "block":
        raise ConfigError("expert.init has one modulation for all blocks; set expert.modulation = 'shared'")


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def to_grid(tensors: Tensors, have: Blueprint, shape: Sequence[int]) -> tuple[Tensors, Blueprint]:
    """Resample the table of positions for samples of another size, over which it stretches."""
    patch = have.patch
    before, after = (
        tuple(n // p for n, p in zip(sizes[1:], patch, strict=True)) for sizes in (have.shape, shape)
    )
    network = have.build()
    assert isinstance(network, DiT)
    table = tensors.get(POSITION, positions(before, have.network.width))
    mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[len(before)]
    grid = table.T.reshape(1, -1, *before)
    table = F.interpolate(grid, size=after, mode=mode, align_corners=False).flatten(2)[0].T.contiguous()
    frequency = tensors.get(FREQUENCY, network.trunk.time.frequency)
    got = have.model_copy(update={"shape": tuple(shape), "tables": True})
    return {**tensors, POSITION: table, FREQUENCY: frequency}, got


def to_condition(tensors: Tensors, have: Blueprint, want: Blueprint) -> Tensors:
    """Another condition; told nothing, the network computes what it did when it was told nothing before."""
    tensors = dict(tensors)
    null = tensors.pop(TABLE)[-1] if have.condition == "class" else torch.zeros(have.network.width)
    if want.condition == "class":
        tensors[TABLE] = null.expand(want.classes + 1, -1).clone()
    else:
        tensors[FOLD] = tensors[FOLD] + null
    if have.condition == "text":
        tensors = {name: value for name, value in tensors.items() if not _of_text(name)}
    return tensors


def _of_text(name: str) -> bool:
    return name.startswith(("trunk.text.", "trunk.condition.project.")) or ".cross." in name


@torch.no_grad()
def to_shared(tensors: Tensors, have: Blueprint) -> Tensors:
    """One modulation for all blocks from one for each: the mean layer, and what each differs from it by.

    Exact where blocks differ by constants only. The last norm takes the embedding of the time itself instead
    of a layer of it, so there only the mean over times can be kept (PixArt-α fits at one time instead).
    """
    tensors, depth = dict(tensors), have.network.depth
    c = _time_embeddings(tensors, have)
    names = [f"trunk.blocks.{i}.modulation.layer" for i in range(depth)]
    layers = [(tensors.pop(f"{name}.weight"), tensors.pop(f"{name}.bias")) for name in names]
    weight, bias = (torch.stack(part).mean(0) for part in zip(*layers, strict=True))
    tensors["trunk.shared.weight"], tensors["trunk.shared.bias"] = weight, bias
    hidden = F.silu(c)
    common = F.linear(hidden, weight, bias)
    for name, layer in zip(names, layers, strict=True):
        table = (F.linear(hidden, *layer) - common).mean(0)
        tensors[name.replace(".layer", ".table")] = table.view(6, -1)
    last = [tensors.pop(f"trunk.modulation.layer.{part}") for part in ("weight", "bias")]
    tensors["trunk.modulation.table"] = F.linear(hidden, *last).mean(0).view(2, -1) - c.mean(0)
    return tensors


def _time_embeddings(tensors: Tensors, have: Blueprint) -> Tensor:
    """What the network makes of times between 0 and 1, told nothing."""
    network = have.build()
    assert isinstance(network, DiT)
    time = network.trunk.time
    prefix = "trunk.time."
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    time.load_state_dict(own, strict=False)
    c = time(torch.arange(PROBES) / PROBES * (TIME_SCALE - 1) / TIME_SCALE)
    return c + tensors[TABLE][-1] if TABLE in tensors else c


def to_objective(tensors: Tensors, have: Objective, conversion: Conversion) -> tuple[Tensors, Objective]:
    """Another objective: keep the old one for the exact wrapper, or new last layers (HDDM's way)."""
    if conversion == "none":
        raise ConfigError(
            f"expert.init predicts {have.prediction} on the {have.path} path; set expert.path and "
            "expert.prediction to that, or expert.convert to 'exact' or 'published'"
        )
    if conversion == "exact":
        return tensors, have
    kept = {
        name: value for name, value in tensors.items() if not name.startswith(("head.", "trunk.modulation."))
    }
    return kept, Objective(rounded=have.path != "linear")
