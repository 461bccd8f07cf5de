"""One base in memory and many adapters on it: each asked alone, or several in one pass of its products.

Nothing of the base is changed or copied, so that threads may ask at once: a network for some adapters is
a twin of the base that shares all but the layers that they update.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.config import AdapterSettings
from atoll.models.adapter import SHIFT, A, B, Tensors, asked, attentions, layers, shifted
from atoll.models.checkpoint import Objective
from atoll.models.expert import as_expert

KEPT = 32
"""Twins that a base remembers: as long as rows keep their adapters, each is made once."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """The tensors of one adapter as they are used: B has the factor of the update in it."""

    settings: AdapterSettings
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, tensors: Tensors, settings: AdapterSettings, device: torch.device | str, dtype: torch.dtype
    ) -> "Adapter":
        """An adapter on a device, in the arithmetic of its base."""
        ready = {
            name: (value * settings.scale if name.endswith(B) and settings.scale != 1 else value)
            for name, value in tensors.items()
        }
        return cls(settings, {name: value.to(device, dtype) for name, value in ready.items()})

    @property
    def kind(self) -> tuple[object, ...]:
        """Adapters that agree in this can be asked in one pass."""
        return self.settings.rank, self.settings.targets, self.settings.tokens, self.settings.biases

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return sum(value.nbytes for value in self.tensors.values())


class Updated(nn.Module):
    """A layer of the base with the updates of one adapter, or of several, each for its rows of a batch."""

    def __init__(
        self,
        layer: nn.Linear,
        pairs: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[int],
        shifts: Sequence[Tensor] = (),
    ) -> None:
        """`pairs` are A (rank, in) and s B (out, rank), `shifts` (out,); `rows` how many rows each has."""
        super().__init__()
        self.layer, self.pairs, self.rows, self.shifts = layer, list(pairs), list(rows), list(shifts)

    @property
    def weight(self) -> Tensor:
        """The layer's own."""
        return self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """The layer of (batch, …, in); one adapter's update goes into the weights where that is less work."""
        if max(len(self.pairs), len(self.shifts)) > 1:
            y = self.layer(x)
            y = _by_rows(y, x, self.pairs, self.rows) if self.pairs else y
            return _shifted_by_rows(y, self.shifts, self.rows) if self.shifts else y
        (outside, inside), count = self.layer.weight.shape, x.numel() // x.shape[-1]
        bias = self.layer.bias + self.shifts[0] if self.shifts else self.layer.bias
        if not self.pairs:
            return F.linear(x, self.layer.weight, bias)
        a, b = self.pairs[0]
        if count * (inside + outside) > inside * outside:
            return F.linear(x, torch.addmm(self.layer.weight, b, a), bias)
        return _added(F.linear(x, self.layer.weight, bias), x, a, b)


def _shifted_by_rows(y: Tensor, shifts: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
    """Y plus a shift of each adapter in its rows, in place."""
    if len(set(rows)) == 1:
        y.view(len(shifts), -1, y.shape[-1]).add_(torch.stack(list(shifts))[:, None])
        return y
    for shift, own in zip(shifts, torch.split(y, list(rows)), strict=True):
        own.add_(shift)
    return y


def _added(y: Tensor, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Y + B A x, in place."""
    y.view(-1, y.shape[-1]).addmm_(F.linear(x, a).flatten(0, -2), b.T)
    return y


def _by_rows(y: Tensor, x: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], rows: Sequence[int]) -> Tensor:
    """The same where each adapter has rows of its own: one product for all if it has as many as any other."""
    if len(set(rows)) == 1:
        a, b = (torch.stack(part) for part in zip(*pairs, strict=True))
        hidden = torch.bmm(x.reshape(len(pairs), -1, x.shape[-1]), a.transpose(1, 2))
        y.view(len(pairs), -1, y.shape[-1]).baddbmm_(hidden, b.transpose(1, 2))
        return y
    for (a, b), y_own, x_own in zip(
        pairs, torch.split(y, list(rows)), torch.split(x, list(rows)), strict=True
    ):
        _added(y_own, x_own, a, b)
    return y


class SeveralTokens(nn.Module):
    """Learnt tokens of one adapter, or of several, each for the next rows of a batch."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], rows: Sequence[int]) -> None:
        super().__init__()
        self.pairs, self.rows = list(pairs), list(rows)

    def forward(self, q: Tensor) -> Tensor:
        """What the queries of each row hear of the tokens of its adapter."""
        keys, values = (torch.stack(part) for part in zip(*self.pairs, strict=True))
        if len(self.pairs) > 1:
            each = torch.repeat_interleave(
                torch.arange(len(self.rows)), torch.tensor(self.rows), output_size=sum(self.rows)
            )
            keys, values = (part[each.to(part.device)] for part in (keys, values))
        return asked(q, keys, values)


def applied(network: nn.Module, adapters: Sequence[Adapter], rows: Sequence[int] = ()) -> nn.Module:
    """A network for batches of these adapters' rows, in their order; of one adapter, for any batch."""
    settings, own = adapters[0].settings, [adapter.tensors for adapter in adapters]
    assert len({adapter.kind for adapter in adapters}) == 1, "adapters of one pass are of one kind"
    assert len(adapters) == 1 or len(rows) == len(adapters)
    updated, moved = layers(network, settings), shifted(network, settings)
    changed: dict[str, nn.Module] = {
        name: Updated(
            layer,
            [(one[f"{name}.{A}"], one[f"{name}.{B}"]) for one in own] if name in updated else [],
            rows,
            [one[f"{name}.{SHIFT}"] for one in own] if name in moved else [],
        )
        for name, layer in {**updated, **moved}.items()
    }
    for name in attentions(network) if settings.tokens else ():
        place = f"{name}.tokens"
        changed[place] = SeveralTokens([(one[f"{place}.keys"], one[f"{place}.values"]) for one in own], rows)
    return twin_of(network, changed)


def twin_of(module: nn.Module, changed: Mapping[str, nn.Module]) -> nn.Module:
    """A module that shares everything with another but for some modules inside it."""
    if not changed:
        return module
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_compiled_call_impl"] = None  # it is bound to the other one
    twin.__dict__["_modules"] = dict(module._modules)
    inside: dict[str, dict[str, nn.Module]] = {}
    for name, part in changed.items():
        first, _, rest = name.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = part
        else:
            twin.__dict__.pop(first, None)  # None until now, and so no module
            twin._modules[first] = part
    for first, parts in inside.items():
        child = module._modules[first]
        assert child is not None
        twin._modules[first] = twin_of(child, parts)
    return twin


@dataclass
class Base:
    """A network that adapters share, with the twins of it that were made last."""

    network: nn.Module
    objective: Objective = field(default_factory=Objective)
    """What the network predicts, and so every adapter of it."""
    compile: Callable[[nn.Module], object] | None = None
    """Compiles a network of one adapter; several are asked about new numbers of rows too often."""
    _twins: "OrderedDict[object, tuple[Sequence[Adapter], nn.Module]]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expert(self, adapters: Sequence[Adapter], rows: Sequence[int] = ()) -> nn.Module:
        """The network of one adapter, or of several with so many rows each; made once while it is in use."""
        key = (tuple(map(id, adapters)), tuple(rows))
        with self._lock:
            if key in self._twins:
                self._twins.move_to_end(key)
                return self._twins[key][1]
        twin = applied(self.network, adapters, rows)
        if self.compile is not None and len(adapters) == 1:
            self.compile(twin)
        made = as_expert(twin, self.objective)
        with self._lock:
            self._twins[key] = tuple(adapters), made  # held, so that no other gets their identities
            while len(self._twins) > KEPT:
                self._twins.popitem(last=False)
        return made


class AdaptedExpert(nn.Module):
    """One adapter on its base: what an ensemble takes for an expert."""

    def __init__(self, base: Base, adapter: Adapter) -> None:
        super().__init__()
        self.base, self.adapter = base, adapter
        self.alone = (base.expert([adapter]),)
        """In a tuple, so that the base's weights are not counted as this one's."""

    def forward(self, *asked: object) -> Tensor:
        """The network's own answer, with this adapter's updates."""
        answer: Tensor = self.alone[0](*asked)
        return answer


def together(experts: Sequence[AdaptedExpert], rows: Sequence[int]) -> nn.Module:
    """One network for a batch of several adapters' rows, in this order; all of one base and kind."""
    base = experts[0].base
    assert all(one.base is base for one in experts)
    return base.expert([one.adapter for one in experts], rows)
