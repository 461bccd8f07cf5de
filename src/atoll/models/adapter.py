"""Adapters: small updates of a network that stays as it is, and that many of them share.

LoRA (Hu et al., arXiv 2106.09685): W x becomes W x + s B A x, with A (rank, in) drawn and B (out, rank) zero
at first. Learnt tokens (after prefix tuning, Li & Liang, arXiv 2101.00190): every block asks a few keys more,
whose values are zero at first. Biases (BitFit, Ben Zaken et al., arXiv 2106.10199): what is added to those of
the base is zero at first. So an adapter that has learnt nothing is its base, bit for bit.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from atoll.config import AdapterSettings
from atoll.errors import ConfigError, CorruptError
from atoll.models import checkpoint
from atoll.models.attention import Attention, attend
from atoll.models.checkpoint import Adaptation, Blueprint
from atoll.models.dit import DiT

Tensors = dict[str, Tensor]

LAYERS = {
    "attention": ("attention.qkv", "attention.out", "cross.q", "cross.kv", "cross.out"),
    "mlp": ("up", "down"),
    "modulation": ("modulation.layer",),
}
"""Layers of a block, by what a recipe calls them."""
SHARED = "trunk.shared"
"""The layer of modulation that all blocks share, where they do."""
A, B, SHIFT, VALUES = "lora_a", "lora_b", "shift", "values"


def scaled(tensors: Tensors, factor: float) -> Tensors:
    """An adapter that changes its base so many times as much: all that is added is linear in these."""
    if factor == 1:
        return tensors
    added = (f".{B}", f".{SHIFT}", f".{VALUES}")
    return {name: value * factor if name.endswith(added) else value for name, value in tensors.items()}


class Adapted(nn.Module):
    """A layer that stays as it is, and what is learnt besides: an update of low rank, a shift, or both."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, shift: bool = False) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        like = layer.weight
        self.lora_a = nn.Parameter(like.new_empty(rank, layer.in_features)) if rank else None
        self.lora_b = nn.Parameter(like.new_zeros(layer.out_features, rank)) if rank else None
        self.shift = nn.Parameter(like.new_zeros(layer.out_features)) if shift else None
        if self.lora_a is not None:
            nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The layer's own."""
        return self.layer.weight

    def forward(self, x: Float[Tensor, "*batch inside"]) -> Float[Tensor, "*batch outside"]:
        """W x + s B A x + shift, the first sum in the product that makes the update."""
        y: Tensor = self.layer(x)
        if self.lora_a is not None and self.lora_b is not None:
            hidden = F.linear(x, self.lora_a)
            flat = torch.addmm(y.flatten(0, -2), hidden.flatten(0, -2), self.lora_b.T, alpha=self.scale)
            y = flat.view(y.shape)
        return y if self.shift is None else y + self.shift.to(y.dtype)


class Tokens(nn.Module):
    """Learnt tokens that the queries of a block ask besides those of the sample."""

    def __init__(self, count: int, width: int, like: Tensor) -> None:
        super().__init__()
        self.keys = nn.Parameter(like.new_empty(count, width))
        self.values = nn.Parameter(like.new_zeros(count, width))
        if not self.keys.is_meta:
            nn.init.normal_(self.keys)

    def forward(self, q: Float[Tensor, "batch heads tokens channels"]) -> Tensor:
        """What the queries hear: attention to the learnt tokens alone, added to that of the sample."""
        return asked(q, self.keys[None], self.values[None])


def asked(
    q: Float[Tensor, "batch heads tokens channels"],
    keys: Float[Tensor, "rows count width"],
    values: Float[Tensor, "rows count width"],
) -> Float[Tensor, "batch heads tokens channels"]:
    """Attention of queries to learnt tokens, one set of them for all rows or one for each."""
    heads, channels = q.shape[1], q.shape[3]
    k, v = (
        one.view(len(one), -1, heads, channels).transpose(1, 2).expand(len(q), -1, -1, -1).to(q.dtype)
        for one in (keys, values)
    )
    return attend(q, k, v)


def layers(network: nn.Module, settings: AdapterSettings) -> dict[str, nn.Linear]:
    """The layers of a network that such an adapter updates, by name."""
    return _linears(network, settings.targets.split("+") if settings.rank else ())


def shifted(network: nn.Module, settings: AdapterSettings) -> dict[str, nn.Linear]:
    """The layers of a network to which such an adapter adds what it has learnt, by name."""
    return _linears(network, LAYERS if settings.biases else ())


def _linears(network: nn.Module, parts: Iterable[str]) -> dict[str, nn.Linear]:
    wanted = [name for part in parts for name in LAYERS[part]]
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and _is_wanted(name, wanted)
    }


def _is_wanted(name: str, wanted: list[str]) -> bool:
    if name == SHARED:
        return "modulation.layer" in wanted
    trunk, _, inside = name.partition(".blocks.")
    return trunk == "trunk" and inside.partition(".")[2] in wanted


def attentions(network: nn.Module) -> dict[str, Attention]:
    """Where a network's blocks ask the tokens of the sample, by name."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Attention)}


def attach(network: nn.Module, settings: AdapterSettings) -> nn.Module:
    """Freeze a network and give it an adapter to learn, which at first changes nothing."""
    network.requires_grad_(False)
    updated, moved = layers(network, settings), shifted(network, settings)
    for name, layer in {**updated, **moved}.items():
        owner, _, leaf = name.rpartition(".")
        rank = settings.rank if name in updated else 0
        setattr(network.get_submodule(owner), leaf, Adapted(layer, rank, settings.scale, name in moved))
    for attention in attentions(network).values() if settings.tokens else ():
        weight = attention.out.weight
        attention.tokens = Tokens(settings.tokens, weight.shape[0], weight)
    return network


def learnt(network: nn.Module) -> Tensors:
    """The tensors of the adapter that a network was given."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def begin(
    weights: Path, config: Path, want: Blueprint, settings: AdapterSettings, sha256: str, *, exact: bool
) -> tuple[nn.Module, Blueprint]:
    """A base from its files with an adapter to learn, and the blueprint of that adapter.

    `exact` says that the recipe trains a base of another objective through its velocity.
    """
    have = checkpoint.read_blueprint(config)
    _check_base(have, want, exact)
    network = have.build()
    network.load_state_dict(checkpoint.read_tensors(weights))
    about = Adaptation(**settings.model_dump(include=set(AdapterSettings.model_fields)), base=sha256)
    return attach(network, settings), have.model_copy(update={"adapter": about, "clusters": want.clusters})


def _check_base(have: Blueprint, want: Blueprint, exact: bool) -> None:
    """A base is taken as it is, so it must be what the recipe describes."""
    if have.role != "expert" or have.adapter is not None:
        what = "a router" if have.role != "expert" else "an adapter itself"
        raise ConfigError(f"expert.adapter.base is {what}; give the folder of an expert that is a network")
    before, after = ({**one.network.model_dump(), "size": None} for one in (have, want))
    differ = [key for key in before if before[key] != after[key] and key != "patch"]
    keys = ["shape", "condition", "classes", "text", "patch"]
    differ += [key for key in keys if getattr(have, key) != getattr(want, key)]
    if not exact:
        differ += [
            key
            for key in ("path", "prediction")
            if getattr(have.objective, key) != getattr(want.objective, key)
        ]
    if differ:
        facts = ", ".join(f"{key} = {_value(have, key)!r}" for key in differ)
        raise ConfigError(f"expert.adapter.base is another network than the recipe's: it has {facts}")


def _value(blueprint: Blueprint, key: str) -> object:
    for place in (blueprint.network, blueprint.objective):
        if key in type(place).model_fields and key not in ("patch", "text"):
            return getattr(place, key)
    return getattr(blueprint, key)


@functools.lru_cache(maxsize=16)
def shapes(blueprint: Blueprint) -> Mapping[str, tuple[int, ...]]:
    """The tensors of an adapter, by name: what a file must hold, no more and no less.

    Remembered, since many adapters have one blueprint.
    """
    assert blueprint.adapter is not None
    with torch.device("meta"):
        network = attach(blueprint.build(), blueprint.adapter)
    return {name: tuple(value.shape) for name, value in learnt(network).items()}


def read(weights: Path, blueprint: Blueprint) -> Tensors:
    """The tensors of an adapter from its file, if they are what its blueprint says and all numbers."""
    tensors, expected = checkpoint.read_tensors(weights), shapes(blueprint)
    wrong = sorted(tensors.keys() ^ expected.keys()) or [
        name for name, value in tensors.items() if tuple(value.shape) != expected[name]
    ]
    if wrong:
        raise CorruptError(f"{weights} does not fit its blueprint, first in {wrong[0]!r}; train it again")
    for name, value in tensors.items():
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            raise CorruptError(f"{weights} has values in {name!r} that are no numbers; train it again")
    return tensors


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], settings: AdapterSettings) -> Tensors:
    """The weights of a base with an adapter's updates added to them: a network by itself."""
    if settings.tokens:
        raise ConfigError("learnt tokens cannot be merged into weights; use an adapter with tokens = 0")
    names = [name.removesuffix(f".{A}") for name in adapter if name.endswith(f".{A}")]
    updates = {
        f"{name}.weight": settings.scale * adapter[f"{name}.{B}"].double() @ adapter[f"{name}.{A}"].double()
        for name in names
    }
    moved = [name for name in adapter if name.endswith(f".{SHIFT}")]
    updates |= {f"{name.removesuffix(f'.{SHIFT}')}.bias": adapter[name].double() for name in moved}
    return {
        name: (value.double() + updates[name]).to(value.dtype) if name in updates else value
        for name, value in base.items()
    }


def is_base(network: nn.Module) -> bool:
    """Whether this is a network of ours, which adapters can share."""
    return isinstance(network, DiT)
