"""In which arithmetic networks answer when sampled: weights cast once, blocks compiled where it pays."""

import functools
import logging
from dataclasses import dataclass

import torch
from torch import nn

from atoll import devices
from atoll.config import SampleConfig

logger = logging.getLogger(__name__)

EXACT = ("frequency",)
"""Buffers that stay float32: neighbouring times must differ. What is float64 stays so, too."""


@dataclass(frozen=True)
class Arithmetic:
    """How networks compute; noise, solver state and weights of experts are float32 whatever it is."""

    dtype: torch.dtype = torch.float32
    compiled: bool = False
    """Whether blocks are compiled."""

    def prepared(self, network: nn.Module) -> nn.Module:
        """A network whose weights are held once, in this arithmetic, ready to be asked."""
        return self.compile(self.cast(network))

    def cast(self, network: nn.Module) -> nn.Module:
        """A network with its weights in this arithmetic."""
        if self.dtype != torch.float32:
            _cast(network, self.dtype)
        return network

    def compile(self, network: nn.Module) -> nn.Module:
        """A network with its blocks compiled, if they are to be."""
        if self.compiled:
            _compile(network)
        return network


PLAIN = Arithmetic()


def choose(config: SampleConfig, device: torch.device) -> Arithmetic:
    """What [sample] asks for on this device; with `auto` what is fast there and right."""
    name = devices.arithmetic(config.precision, device)
    if name == "float32" and config.tf32 and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    wanted = config.compile == "on" or (config.compile == "auto" and device.type == "cuda")
    compiled = wanted and _compiler_works(device)
    if compiled and config.compile == "auto":  # nobody asked: a block that does not compile runs as it is
        torch._dynamo.config.suppress_errors = True
    return Arithmetic(getattr(torch, name), compiled)


def _cast(network: nn.Module, dtype: torch.dtype) -> None:
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    for module in network.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype == torch.float32 and name not in EXACT:
                module._buffers[name] = buffer.to(dtype)


def _compile(network: nn.Module) -> None:
    """Compile the blocks, of which one stands for all, for batches of any size."""
    for module in network.modules():
        for block in getattr(module, "blocks", ()):
            block.compile(dynamic=True)


@functools.cache
def _compiler_works(device: torch.device) -> bool:
    """Whether compiled code runs on this device; asked once."""
    complaint = devices.compiler_complaint(device)
    if complaint is not None:
        logger.warning("torch.compile does not work here (%s); sampling goes on without it", complaint)
    return complaint is None
