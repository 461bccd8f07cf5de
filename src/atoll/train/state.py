"""The state of training at rest: weights, averaged weights, optimiser and position, whole or not at all."""

from pathlib import Path

import torch
from torch import Tensor, nn

from atoll.errors import CorruptError, TrainingError
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.runs import file_digest, read_json, replacing, write_json

LATEST = "latest.json"


class TrainingState:
    """A network in training."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimiser = optimiser
        self.step = 0
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = [parameter for _, parameter in model.named_parameters()]
        self.ema = [parameter.detach().clone() for parameter in self.parameters]

    def averaged(self) -> dict[str, Tensor]:
        """The averaged weights by name: the ones that sample."""
        return dict(zip(self.names, self.ema, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training needs to go on, by name."""
        found: dict[str, Tensor] = {}
        found |= {f"model/{name}": value for name, value in zip(self.names, self.parameters, strict=True)}
        found |= {f"ema/{name}": value for name, value in self.averaged().items()}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for key, value in self.optimiser.state[parameter].items():
                found[f"optimiser/{key}/{name}"] = value
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take everything back."""
        for name, parameter, average in zip(self.names, self.parameters, self.ema, strict=True):
            parameter.data.copy_(tensors[f"model/{name}"])
            average.copy_(tensors[f"ema/{name}"])
        marker = "optimiser/"
        for key, value in tensors.items():
            if key.startswith(marker):
                field, name = key.removeprefix(marker).split("/", 1)
                parameter = self.parameters[self.names.index(name)]
                # Adam's step count lives on the CPU unless the optimiser is fused or capturable.
                self.optimiser.state[parameter][field] = value.to(parameter.device)


def save(state: TrainingState, folder: Path) -> None:
    """Write the state beside the old one, then point to it; the old one is whole until the new one is."""
    name = f"step-{state.step:08d}.safetensors"
    try:
        with replacing(folder / name) as beside:
            write_tensors(beside, state.tensors())
        pointer = {"step": state.step, "file": name, "sha256": file_digest(folder / name)}
        write_json(folder / LATEST, pointer)
    except OSError as error:
        raise TrainingError(
            f"cannot save to {folder} ({error.strerror or error}); the last good state is kept: "
            "make room and run the same command again"
        ) from None
    for old in folder.glob("step-*.safetensors"):
        if old.name != name:
            old.unlink()


def resume(state: TrainingState, folder: Path) -> None:
    """Go on from the state in this folder, if there is one."""
    if not (folder / LATEST).is_file():
        return
    pointer = read_json(folder / LATEST)
    path = folder / pointer["file"]
    if not path.is_file() or file_digest(path) != pointer["sha256"]:
        raise CorruptError(
            f"{path} is missing or damaged (sha256 differs); add --start-over to train from the beginning"
        )
    state.restore(read_tensors(path))
    state.step = pointer["step"]
