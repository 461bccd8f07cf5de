"""A GPU on paper: real numbers on the CPU, refused where devices would meet, noted where the CPU would wait.

Every storage has a device on paper. A function mode answers `.device`, takes `device="cuda"`, `.to("cuda")`
and `.pin_memory()` at their word; a dispatch mode below autograd sees every operation, forward and backward,
refuses those that a CUDA build would refuse, and notes those whose answer the CPU must wait for. What enters
torch.distributed must be on the GPU, as NCCL demands. It knows nothing of kernels, of compilation, or of
which thread is ahead: what it lets pass may still be slow, but not of two minds about where it is.
"""

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils import _foreach_utils, checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
OURS = "/src/atoll/"

WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount}
WAITING |= {aten.item, aten.is_nonzero, aten.allclose}  # whole in inference mode, else made of the first
WAITING |= {aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.histc, aten.linalg_eigh}
"""Operations whose answer, or its size, the CPU must know."""
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.matmul}
"""Matrix products; the last two are whole in inference mode, else made of the others."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
NUMBER_FROM_ANYWHERE = {aten.fill, aten.fill_, aten.masked_fill, aten.masked_fill_, aten.index_fill_}
"""Besides pointwise operations, those that take a number (a tensor of no axes) from the CPU."""
COMPARING = {aten._has_compatible_shallow_copy_type}
"""Operations that look at two tensors without reading either."""
READS = {"tolist", "numpy", "__array__"}
"""What reads memory without any operation."""
DEVICE: Any = torch.Tensor.device.__get__
IS_CUDA: Any = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
MOVES = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda}


class DeviceError(RuntimeError):
    """Tensors of two devices met, or one is where it must not be."""


class Wait(NamedTuple):
    """Something for which the CPU waits until the GPU has done all that it was asked."""

    what: str
    place: str
    """File and function of ours, without the line, which moves."""
    line: int

    def __str__(self) -> str:
        return f"{self.what} in {self.place} (line {self.line})"


class Paper(NamedTuple):
    """What is written of a storage."""

    storage: StorageWeakRef
    device: str
    pinned: bool = False


class Ledger:
    """Where every storage is on paper, and what was noted on the way."""

    def __init__(self) -> None:
        self.papers: dict[int, Paper] = {}
        self.waits: collections.Counter[Wait] = collections.Counter()
        self.products: collections.Counter[torch.dtype] = collections.Counter()
        """Matrix products on the GPU, by arithmetic."""
        self.arriving: set[int] = set()
        """Storages on the CPU to which a copy is under way that nobody has waited for."""
        self.making: list[str] = []
        """Where what is made from nothing belongs, by the innermost call from Python."""

    def paper(self, value: torch.Tensor) -> Paper | None:
        found = self.papers.get(value.untyped_storage()._cdata)
        return found if found is not None and not found.storage.expired() else None

    def device(self, value: torch.Tensor) -> str:
        if value.is_meta:
            return "any"
        found = self.paper(value)
        return "cpu" if found is None else found.device

    def put(self, value: torch.Tensor, device: str, *, pinned: bool = False) -> None:
        if not value.is_meta:
            storage = value.untyped_storage()
            self.papers[storage._cdata] = Paper(StorageWeakRef(storage), device, pinned)
        if len(self.papers) > 20_000:
            self.papers = {key: one for key, one in self.papers.items() if not one.storage.expired()}

    def is_pinned(self, value: torch.Tensor) -> bool:
        found = self.paper(value)
        return found is not None and found.pinned

    def wait(self, what: str) -> None:
        self.waits[Wait(what, *self.where())] += 1

    @staticmethod
    def where() -> tuple[str, int]:
        """The innermost file, function and line of ours."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if OURS in name:
                return f"{name.split(OURS)[-1]} {frame.f_code.co_name}", frame.f_lineno
            frame = frame.f_back
        return "elsewhere", 0

    def arrived(self) -> None:
        """The CPU has waited for everything."""
        self.arriving.clear()

    def copied(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        """Note a copy between devices: it is no wait only from or to pinned memory, and if asked for."""
        there, here = self.device(target), self.device(source)
        if {there, here} != {"cpu", "cuda"}:
            return
        if not non_blocking or not self.is_pinned(target if there == "cpu" else source):
            self.wait("copy to the CPU" if there == "cpu" else "copy from memory that is not pinned")
        elif there == "cpu":
            self.arriving.add(target.untyped_storage()._cdata)

    def places(self) -> dict[str, int]:
        """How often the CPU waited, by place."""
        found: collections.Counter[str] = collections.Counter()
        for wait, count in self.waits.items():
            found[wait.place] += count
        return dict(found)

    def told(self) -> str:
        """All waits, for a person."""
        return "\n".join(f"{count} x {wait}" for wait, count in self.waits.most_common())


def _tensors(*trees: Any) -> list[torch.Tensor]:
    """All in nested lists and dictionaries; asked for at every operation, so without torch's own slow way."""
    found: list[torch.Tensor] = []
    for tree in trees:
        if isinstance(tree, torch.Tensor):
            found.append(tree)
        elif isinstance(tree, (list, tuple)):
            found += _tensors(*tree)
        elif isinstance(tree, dict):
            found += _tensors(*tree.values())
    return found


@functools.cache
def _takes_numbers(func: Any) -> bool:
    """Whether an operation on the GPU takes a number from the CPU."""
    pointwise = torch.Tag.pointwise in func.tags or func.overloadpacket in NUMBER_FROM_ANYWHERE
    return pointwise and not func._schema.name.startswith(("aten::_foreach", "aten::_fused"))


class Operations(TorchDispatchMode):
    """Every operation, below autograd."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        ledger, given = self.ledger, _tensors(args, kwargs)
        device = self._device_of(func, args, kwargs, given)
        before = {value.untyped_storage()._cdata for value in given if not value.is_meta}
        made = func(*args, **kwargs)
        for value in _tensors(made):
            if not value.is_meta and value.untyped_storage()._cdata not in before:
                ledger.put(value, device)
        return made

    def _device_of(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> str:
        """Where the result is; or a mix-up."""
        ledger, packet = self.ledger, func.overloadpacket
        self._check_arrival(func, given)
        if packet is aten.copy_:
            ledger.copied(args[0], args[1], bool(kwargs.get("non_blocking", len(args) > 2 and args[2])))
            return ledger.device(args[0])
        if packet in COMPARING:
            return "any"
        if func.namespace in ("c10d", "_c10d_functional"):
            self._check_distributed(func, given)
        if packet in INDEXING:
            return self._indexed(func, args)
        devices = {ledger.device(value) for value in given if not self._is_welcome(func, value, given)}
        if {"cpu", "cuda"} <= devices:
            self._refuse(func, given)
        if not devices - {"any"}:
            return ledger.making[-1] if ledger.making else "any"
        device = "cuda" if "cuda" in devices else "cpu"
        if device == "cuda":
            self._note(packet, given)
        return device

    def _is_welcome(self, func: Any, value: torch.Tensor, given: list[torch.Tensor]) -> bool:
        """A number from the CPU meets anything in pointwise operations."""
        number = len(given) > 1 and not value.ndim and _takes_numbers(func)
        return number and self.ledger.device(value) == "cpu"

    def _note(self, packet: Any, given: list[torch.Tensor]) -> None:
        if packet in WAITING:
            name = str(packet).removeprefix("aten.")
            self.ledger.wait("item" if packet is aten._local_scalar_dense else name)
        if packet in PRODUCTS:
            self.ledger.products[given[-1].dtype] += 1

    def _indexed(self, func: Any, args: Any) -> str:
        """The GPU may be indexed from the CPU, which waits; never the other way round."""
        ledger, own = self.ledger, self.ledger.device(args[0])
        indices = _tensors(args[1])
        if own == "cpu" and any(ledger.device(index) == "cuda" for index in indices):
            self._refuse(func, [args[0], *indices])
        values = [value for value in _tensors(args[2:]) if value.ndim]
        if any({own, ledger.device(value)} == {"cpu", "cuda"} for value in values):
            self._refuse(func, [args[0], *values])
        for index in indices if own == "cuda" else []:
            if index.dtype in (torch.bool, torch.uint8):
                ledger.wait("boolean index")
            elif ledger.device(index) == "cpu" and index.ndim:
                ledger.wait("index from the CPU")
        return own

    def _check_arrival(self, func: Any, given: list[torch.Tensor]) -> None:
        if not self.ledger.arriving:
            return
        early = [value for value in given if not value.is_meta and self._is_arriving(value)]
        if early and func.overloadpacket is not aten.copy_:
            raise DeviceError(f"{func} reads a copy that nobody has waited for, in {self.ledger.where()}")

    def _is_arriving(self, value: torch.Tensor) -> bool:
        return value.untyped_storage()._cdata in self.ledger.arriving

    def _check_distributed(self, func: Any, given: list[torch.Tensor]) -> None:
        if any(self.ledger.device(value) == "cpu" for value in given):
            self._refuse(func, given)

    def _refuse(self, func: Any, given: list[torch.Tensor]) -> None:
        named = [f"{self.ledger.device(value)}{list(value.shape)}" for value in given[:6]]
        raise DeviceError(f"{func}: {', '.join(named)} in {' line '.join(map(str, self.ledger.where()))}")


class Functions(TorchFunctionMode):
    """What Python sees and asks for, above autograd."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ledger, kwargs = self.ledger, dict(kwargs or {})
        own = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if own is not None:
            if func == DEVICE:
                return GPU if ledger.device(own) == "cuda" else func(*args)
            if func == IS_CUDA:
                return ledger.device(own) == "cuda"
            if func in MOVES:
                return self._to(func, own, args[1:], kwargs)
            if func is torch.Tensor.pin_memory:
                return self._pin(own)
            if func is torch.Tensor.is_pinned:
                return ledger.is_pinned(own)
            self._read(getattr(func, "__name__", ""), own)
        return self._make(func, args, kwargs)

    def _read(self, name: str, own: torch.Tensor) -> None:
        if name in READS and self.ledger.device(own) == "cuda":
            if name != "tolist":
                raise DeviceError(f"a CUDA tensor cannot become a numpy array, in {self.ledger.where()}")
            self.ledger.wait(name)

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call; what is made from nothing belongs to the device that is named, or to that of the others."""
        ledger, asked = self.ledger, kwargs.get("device")
        device = None if asked is None else torch.device(asked).type
        pinned = bool(kwargs.pop("pin_memory", False))
        if device == "cuda":
            kwargs["device"] = CPU
            if func in (torch.tensor, torch.as_tensor, torch.asarray):
                ledger.wait("copy from memory that is not pinned")
        if device is None:
            held = {ledger.device(value) for value in _tensors(args, kwargs)}
            device = "cuda" if "cuda" in held else "cpu"
        ledger.making.append("cpu" if device == "meta" else device)
        try:
            made = func(*args, **kwargs)
        finally:
            ledger.making.pop()
        if (asked is not None and device == "cuda") or pinned:
            for value in _tensors(made):
                ledger.put(value, device, pinned=pinned)
        return made

    def _pin(self, own: torch.Tensor) -> torch.Tensor:
        if self.ledger.device(own) == "cuda":
            raise DeviceError(f"only dense CPU tensors can be pinned, in {self.ledger.where()}")
        if self.ledger.is_pinned(own):
            return own
        made = own.clone()
        self.ledger.put(made, "cpu", pinned=True)
        return made

    def _to(self, func: Any, own: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
        ledger = self.ledger
        device, dtype, non_blocking = self._asked(func, args, kwargs)
        here = ledger.device(own)
        there = here if device is None else device.type
        if own.is_meta or there == "meta":
            result: torch.Tensor = func(own, *args, **kwargs)
            return result
        copy = bool(kwargs.get("copy")) or there != here
        ledger.making.append(there)
        try:
            made = own.to(dtype or own.dtype, copy=copy)
        finally:
            ledger.making.pop()
        if there != here:
            # torch pins what it copies to without blocking, but not what it copies from
            ledger.put(made, there, pinned=non_blocking and there == "cpu")
            ledger.copied(made, own, non_blocking)
        return made

    def _asked(self, func: Any, args: Any, kwargs: Any) -> tuple[torch.device | None, Any, bool]:
        if func is not torch.Tensor.to:
            return (CPU if func is torch.Tensor.cpu else GPU), None, bool(kwargs.get("non_blocking"))
        if args and isinstance(args[0], torch.Tensor):
            return (GPU if self.ledger.device(args[0]) == "cuda" else CPU), args[0].dtype, False
        rest = {key: value for key, value in kwargs.items() if key not in ("copy", "memory_format")}
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **rest)
        return device, dtype, non_blocking


class _Event:
    """Of a stream on paper: waiting for it is waiting for everything."""

    ledger: Ledger

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        self.ledger.arrived()


def _grouped(ledger: Ledger, real: Any, lists: list[list[torch.Tensor]], with_indices: bool = False) -> Any:
    """What optimisers and norms ask of torch, which answers in C++ by real devices."""
    return {
        (GPU if ledger.device(entry[0][0][0]) == "cuda" else device, dtype): entry
        for (device, dtype), entry in real(lists, with_indices).items()
    }


def _watched_backward(ledger: Ledger, real: Any) -> Any:
    """Backward runs inside one call from Python; what Python does there is seen again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        seen = _get_current_function_mode() is not None
        ledger.making.append("any")
        try:
            with contextlib.nullcontext() if seen else Functions(ledger):
                return real(*args, **kwargs)
        finally:
            ledger.making.pop()

    return run


@contextlib.contextmanager
def pretended_gpu(capability: tuple[int, int] = (8, 0), memory: int = 80 * 10**9) -> Iterator[Ledger]:
    """Within, this machine has one GPU, on paper."""
    ledger, real_autocast = Ledger(), torch.autocast
    real_groups = _foreach_utils._group_tensors_by_device_and_dtype
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "synchronize": lambda *_: ledger.arrived(),
        "get_device_name": lambda *_: "a GPU on paper",
        "get_device_capability": lambda *_: capability,
        "is_bf16_supported": lambda *_, **__: capability >= (8, 0),
        "mem_get_info": lambda *_: (memory, memory),
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=memory),
        "Event": type("Event", (_Event,), {"ledger": ledger}),
    }
    with contextlib.ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        autocast = lambda _, *args, **settings: real_autocast("cpu", *args, **settings)  # noqa: E731
        stack.enter_context(mock.patch.object(torch, "autocast", autocast))
        for module in (_foreach_utils, torch.nn.utils.clip_grad):
            group = lambda lists, indices=False: _grouped(ledger, real_groups, lists, indices)  # noqa: E731
            stack.enter_context(mock.patch.object(module, "_group_tensors_by_device_and_dtype", group))
        # Compares what was kept with what is computed again, once with our modes and once without.
        checks = {"default": lambda value: {"shape": value.shape, "dtype": value.dtype}}
        stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, checks))
        backward = _watched_backward(ledger, torch.autograd._engine_run_backward)
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(Operations(ledger))
        stack.enter_context(Functions(ledger))
        yield ledger
