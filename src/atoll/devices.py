"""Where numbers are computed and in which arithmetic: one answer for training, sampling and encoding."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    import torch

CPU_BFLOAT16 = "ATOLL_CPU_BFLOAT16"
"""Environment variable: 1 or 0 answers in the CPU's place whether it has units for bfloat16."""
TENSOR_CORES = (7, 0)
"""From this CUDA capability on a GPU has fast float16 products; Pascal's are up to 64 times slower."""


def best() -> torch.device:
    """The fastest device of this machine; of several GPUs, the one of this process."""
    import torch  # noqa: PLC0415 - seconds that `atoll --help` need not pay

    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pick(name: str | None, key: str = "device") -> torch.device:
    """The device that was asked for under this key, or with `auto` the best one."""
    import torch  # noqa: PLC0415

    if name in (None, "auto"):
        return best()
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"{key} '{name}' is not there; use cpu or auto") from None


def arithmetic(precision: str, device: torch.device) -> str:
    """What was asked for, or with `auto` the fastest arithmetic that this device has units for.

    Without units a CPU converts every number back and forth and is ten times slower than with float32.
    """
    if precision != "auto":
        return precision
    if has_bfloat16_units(device):
        return "bfloat16"
    return "float16" if _has_float16_units(device) else "float32"


def has_bfloat16_units(device: torch.device) -> bool:
    """A GPU since Ampere, or a CPU with AVX512_BF16 or AMX."""
    import torch  # noqa: PLC0415

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    pretended = os.environ.get(CPU_BFLOAT16)
    if pretended is not None:
        return pretended == "1"
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


def _has_float16_units(device: torch.device) -> bool:
    import torch  # noqa: PLC0415

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= TENSOR_CORES


def compiler_complaint(device: torch.device) -> str | None:
    """Why compiled code does not run on this device; None if it does.

    A missing compiler or header, or a GPU that is too old for Triton, shows with the smallest of programs.
    """
    import torch  # noqa: PLC0415

    try:
        torch.compile(_smallest_program)(torch.ones(8, device=device))
    except Exception as error:  # whatever the compiler has to say, networks work without it
        return complaint(error)
    return None


def _smallest_program(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def complaint(error: Exception) -> str:
    """The line of a compiler's complaint that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("backend=")]
    return (telling or [type(error).__name__])[0]


def autocast(arithmetic: str, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Products in this arithmetic; weights, norms and losses stay float32."""
    import torch  # noqa: PLC0415

    if arithmetic == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, arithmetic))
