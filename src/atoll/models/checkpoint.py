"""Weights with the config that built them; safetensors and JSON only."""

import json
import stat
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from atoll.config import AdapterSettings, NetworkConfig, ObjectiveConfig, Section
from atoll.errors import ConfigError, CorruptError
from atoll.models.dit import DiT
from atoll.models.router import Router

WEIGHTS = "weights.safetensors"
CONFIG = "config.json"


class Objective(ObjectiveConfig):
    """What a network predicts, of which state, and at which time it is fed."""

    rounded: bool = False
    """Whether the network is fed the whole index round(999 t) of an older network's schedule."""


class Adaptation(AdapterSettings):
    """What an adapter is, and of which network."""

    base: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The sha256 of the base's weights."""


class Blueprint(Section):
    """All that is needed to build a network again."""

    role: Literal["expert", "router"]
    network: NetworkConfig
    shape: tuple[int, ...] = Field(strict=False)
    """(channels, *grid) of a sample."""
    condition: Literal["none", "class", "text"] = "none"
    classes: int = 0
    text: int = 0
    """Width of the states of a text."""
    clusters: int = 1
    """Number of clusters of the run; a router has as many logits."""
    prototypes: int = Field(0, ge=0)
    """Of all clusters together, by which a router knows them before it has learnt anything."""
    objective: Objective = Objective()
    """What an expert predicts; by default what all once did, the velocity."""
    numbered: int = Field(0, ge=0)
    """Clusters that it is told by number, while it is trained: see `models.numbered`."""
    tables: bool = False
    """Whether positions and time frequencies are not the usual ones and lie with the weights."""

    steps: bool = False
    """Whether it is a flow map, which is told where a step ends."""
    adapter: Adaptation | None = None
    """If the weights are those of an adapter alone: of the network that all the rest says."""

    @property
    def patch(self) -> tuple[int, ...]:
        """Samples per token along each axis."""
        return self.network.patch_of(self.shape)

    def build(self) -> nn.Module:
        """A new network with initial weights."""
        network: DiT | Router
        if self.role == "router":
            network = Router(
                self.network,
                self.shape,
                self.clusters,
                self.condition,
                self.classes,
                self.text,
                self.prototypes,
            )
        else:
            condition = (self.condition, self.classes, self.text)
            network = DiT(self.network, self.shape, *condition, self.steps, self.numbered)
        if self.tables:
            trunk = network.trunk
            trunk.register_buffer("position", trunk.position, persistent=True)
            trunk.time.register_buffer("frequency", trunk.time.frequency, persistent=True)
        return network


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors, from whatever device they are on; an OSError if there is no room for them.

    Whoever may read other files of this user may read them: the library would keep them to the user alone.
    """
    on_cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    path.touch()
    usual = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(on_cpu, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(usual)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors."""
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{path} cannot be read ({error}); delete its folder and train it again") from None


def load(weights: Path, config: Path, device: torch.device | str = "cpu") -> tuple[nn.Module, Blueprint]:
    """Build a network from its config and give it its weights, ready to be asked.

    It is built without storage and takes the mapped file as it is, so that on a CPU an expert costs the
    memory of what is read of it, and no time for initial weights that nobody wants.
    """
    blueprint = read_blueprint(config)
    if blueprint.adapter is not None:
        raise ConfigError(
            f"{config.parent} is an adapter and no network by itself; give its run, or its base"
        )
    with torch.device("meta"):
        network = blueprint.build()
    try:
        network.load_state_dict(read_tensors(weights), assign=True)
    except RuntimeError as error:
        raise CorruptError(f"{weights} does not fit {config}: {' '.join(str(error).split())}") from None
    return network.to(device).eval().requires_grad_(False), blueprint


def read_blueprint(config: Path) -> Blueprint:
    """The blueprint beside some weights."""
    try:
        tree: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        return Blueprint.model_validate(tree)
    except (OSError, json.JSONDecodeError, ValidationError) as error:
        reason = " ".join(str(error).split())
        raise CorruptError(f"{config} is missing or damaged ({reason}); train it again") from None
