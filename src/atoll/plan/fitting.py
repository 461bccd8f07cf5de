"""Whether a training fits a device, and what would make it fit."""

from typing import Literal, NamedTuple

from atoll.config import TrainConfig
from atoll.models import costs
from atoll.models.costs import Network
from atoll.plan.sheets import Device


class Asked(NamedTuple):
    """Networks that are only asked while another one is trained."""

    flops: float = 0.0
    """For each sample of a step."""
    experts: tuple[int, ...] = ()
    """Bytes of each expert, the largest first."""
    others: float = 0.0
    """Bytes of a router, or of a dense student that teaches."""
    resident: int = 0
    """Experts that are held at once."""

    def memory(self, resident: int | None = None) -> float:
        """Bytes, if so many experts are held."""
        return float(sum(self.experts[: self.resident if resident is None else resident]) + self.others)


NOBODY = Asked()


def what_would_fit(
    network: Network, train: TrainConfig, device: Device, teachers: Asked = NOBODY, devices: int = 1
) -> str:
    """The least change with which training fits the device, or what is needed besides."""
    own = -(-train.batch // devices)
    rows = min(train.micro_batch or own, own)
    for resident in _halves(teachers.resident) or [0]:
        for recompute in dict.fromkeys((train.recompute, True)):
            for size in _halves(rows):
                changed = train.model_copy(update={"micro_batch": size, "recompute": recompute})
                if memory_of(network, changed, device, teachers, devices, resident).total <= device.room:
                    changes = [f"micro_batch = {size}"] if size != rows else []
                    changes += ["recompute = true"] if recompute and not train.recompute else []
                    changes += [f"resident = {resident}"] if resident != teachers.resident else []
                    return " and ".join(changes)
    frugal = train.model_copy(update={"recompute": True, "micro_batch": 1, "parallel": "fsdp"})
    for more in (2, 4, 8, 16, 32, 64):
        if more > devices and memory_of(network, frugal, device, teachers, more, 1).total <= device.room:
            return f'launch.gpus = {more} and parallel = "fsdp"'
    return "a smaller network"


def _halves(count: int) -> list[int]:
    """A number, its half, and so on to one."""
    return [count >> shift for shift in range(count.bit_length())]


def memory_of(
    network: Network,
    train: TrainConfig,
    device: Device,
    teachers: Asked,
    devices: int,
    resident: int | None = None,
) -> costs.Memory:
    """What a training needs on each of its devices."""
    half = device.half if train.precision == "auto" else train.precision != "float32"
    return costs.memory(
        network,
        train,
        devices=devices,
        parallel=parallel_of(network, train, device),
        half=half,
        pairs=device.cores > 0,
        teachers=teachers.memory(resident),
    )


def parallel_of(network: Network, train: TrainConfig, device: Device) -> Literal["ddp", "fsdp"]:
    """As training decides it: a copy on each device where it leaves a third of it to activations."""
    if train.parallel != "auto":
        return train.parallel
    return "ddp" if costs.trained_bytes(network) < device.gigabytes * 1e9 * 2 / 3 else "fsdp"
