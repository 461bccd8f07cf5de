"""Devices that a plan can be for: GPUs by their data sheets, this machine's CPU by a measurement."""

import functools
import math
import os
import time
from typing import NamedTuple

from atoll import threads
from atoll.errors import ConfigError

UTILISATION = 0.4
"""Share of the peak that training reaches: what well-written transformers of these sizes do."""
CPU_UTILISATION = 0.5
"""The same of a CPU's measured product: `python -m benchmarks.train` prints it for two sizes."""
USABLE = 0.92
"""Share of a device's memory that is left by driver, context and fragments."""


class Device(NamedTuple):
    """A device by its data sheet."""

    gigabytes: float
    teraflops: float
    """Peak of dense matrix products in half precision, summed in float32; of a CPU, in what it does best."""
    half: bool = True
    """Whether half precision is what `precision = "auto"` takes."""
    utilisation: float = UTILISATION
    at_once: int = 1
    """Jobs that share it."""
    cores: int = 0
    """Of a CPU, which a job has as many of as pay."""

    @property
    def room(self) -> float:
        """Bytes for one job."""
        return self.gigabytes * 1e9 * USABLE / self.at_once

    def rate(self, product: float) -> float:
        """FLOPs a second of one job, by the size of its products."""
        share = 1.0
        if self.cores:
            share = min(max(1, self.cores // self.at_once), threads.useful(product)) / self.cores
        return self.teraflops * 1e12 * self.utilisation * share


DEVICES = {
    "T4": Device(16, 65),
    "V100-32GB": Device(32, 125),
    "RTX-3090": Device(24, 71),
    "RTX-4090": Device(24, 165),
    "A10G": Device(24, 70),
    "L4": Device(24, 121),
    "A40": Device(48, 150),
    "L40S": Device(48, 362),
    "A100-40GB": Device(40, 312),
    "A100-80GB": Device(80, 312),
    "H100": Device(80, 989),
    "H200": Device(141, 989),
}
"""Vendors' figures without sparsity; `cpu` is this machine, measured."""


def device_named(name: str, jobs: int = 1) -> Device:
    """A device that a plan can be for; on this machine's CPU, jobs of one thread share the cores."""
    if name == "cpu":
        return this_cpu(min(jobs, threads.cores()))
    if name not in DEVICES:
        raise ConfigError(f"plan.gpu '{name}' is not known; use one of {', '.join([*DEVICES, 'cpu'])}")
    return DEVICES[name]


def this_cpu(at_once: int, size: int = 1024, repeats: int = 5) -> Device:
    """This machine's CPU: the best of a few products in the arithmetic that training takes here, a moment."""
    import torch  # noqa: PLC0415 - only who asks for this machine waits for it

    from atoll import devices  # noqa: PLC0415

    half = devices.arithmetic("auto", torch.device("cpu")) != "float32"
    whole = _core_rate(half, size, repeats) / 1e12 * threads.cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(memory / 1e9, whole, half, CPU_UTILISATION, at_once, threads.cores())


@functools.cache
def _core_rate(half: bool, size: int, repeats: int) -> float:
    """FLOPs a second of one core in a product, the best of several; measured once, since every job asks."""
    import torch  # noqa: PLC0415

    a = torch.ones(size, size, dtype=torch.bfloat16 if half else torch.float32)
    before, best = torch.get_num_threads(), math.inf
    torch.set_num_threads(1)
    for _ in range(repeats):
        since = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - since)
    torch.set_num_threads(before)
    return 2 * size**3 / best
