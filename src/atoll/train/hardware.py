"""How steps are taken on this machine: compilation, and decisions that stay."""

import logging
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from atoll import devices
from atoll.config import TrainConfig

logger = logging.getLogger(__name__)

WORTH_A_TRIAL = 3600.0
"""Seconds of training that must lie ahead before a CPU tries to compile, which takes a minute or two."""
PAYS = 1.05
"""How much faster a compiled step must be."""


def describe(device: torch.device) -> str:
    """The device by name; decisions made on one are not taken over by another."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def decide(
    config: TrainConfig, device: torch.device, before: dict[str, Any], trial: Callable[[], bool]
) -> dict[str, Any]:
    """How steps are taken here; what an earlier start of the same training decided on such a device stays.

    Otherwise a measured decision could fall differently and the resumed training would not be the same one.
    """
    arithmetic = devices.arithmetic(config.precision, device)
    chosen = {"device": describe(device), "precision": arithmetic}
    if {key: before.get(key) for key in chosen} == chosen and config.compile == "auto":
        return before
    return {**chosen, "compile": trial() if config.compile == "auto" else config.compile == "on"}


def compile_blocks(model: nn.Module) -> None:
    """Compile one block, which all blocks share, rather than the whole network: minutes become seconds."""
    trunk = getattr(model, "trunk", None)
    for part in trunk.blocks if trunk is not None else [model]:
        part.compile()


def uncompile_blocks(model: nn.Module) -> None:
    """Undo `compile_blocks`."""
    for part in model.modules():
        part._compiled_call_impl = None


def compiling_works(model: nn.Module, device: torch.device, step: Callable[[], object] | None) -> bool:
    """Whether compiled code runs on this device, and this step in it; leaves the network as it was."""
    complaint = devices.compiler_complaint(device)
    if complaint is None and step is not None:
        complaint = _tried(model, step)
    if complaint is not None:
        logger.warning("torch.compile does not work here (%s); training goes on without it", complaint)
    return complaint is None


def _tried(model: nn.Module, step: Callable[[], object]) -> str | None:
    """A compiled step; why it failed, if it did."""
    try:
        compile_blocks(model)
        step()
    except Exception as error:  # whatever the compiler has to say, training works without it
        return devices.complaint(error)
    finally:
        uncompile_blocks(model)
    return None


def compiling_pays(model: nn.Module, step: Callable[[], object], ahead: int) -> bool:
    """Measure a step as it is and compiled, if enough steps lie ahead; leaves the network as it was."""
    if _seconds(step, 1) * ahead < WORTH_A_TRIAL:  # the first takes longest: short jobs try no more than it
        return False
    plain = _seconds(step)
    if plain * ahead < WORTH_A_TRIAL:
        return False
    try:
        compile_blocks(model)
        step()
        compiled = _seconds(step)
    except Exception as error:  # no compiler on this machine, or one that fails: both mean no
        reason = devices.complaint(error)
        logger.warning("torch.compile does not work here (%s); training goes on without it", reason)
        return False
    finally:
        uncompile_blocks(model)
    logger.info("a step takes %.3f s, compiled %.3f s", plain, compiled)
    return plain > PAYS * compiled


def _seconds(step: Callable[[], object], repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        since = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - since)
    return best
