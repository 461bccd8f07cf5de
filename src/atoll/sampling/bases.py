"""Which network an adapter belongs to: found among those of its run by the digest that it names."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from atoll.errors import RunError
from atoll.models import adapter, checkpoint
from atoll.models.checkpoint import Blueprint
from atoll.runs import RESOLVED, Run, Stage
from atoll.runs.components import FOLDER
from atoll.runs.shared import SharedNetworkContents


def of_run(run: Run) -> list[Stage]:
    """The networks of a run that adapters may belong to: its start, and what it took in from elsewhere."""
    return _inside(run.path)


def near(stage: Stage) -> list[Stage]:
    """The same for an adapter's own folder, if that lies in a run's."""
    folder = stage.path.resolve().parent.parent
    return _inside(folder) if (folder / RESOLVED).is_file() else []


def shared_near(stage: Stage) -> Stage[SharedNetworkContents] | None:
    """The network that has the low noise of an expert whose folder lies in a run's, if there is one."""
    folder = stage.path.resolve().parent.parent
    shared = Stage(folder / "shared", SharedNetworkContents)
    return shared if stage.path.parent.name in ("experts", FOLDER) and shared.done else None


def _inside(folder: Path) -> list[Stage]:
    places = [folder / "start", *sorted((folder / "init").glob("[0-9]*"))]
    stages: list[Stage] = [Stage(place) for place in places]
    return [stage for stage in stages if stage.done]


def base_of(blueprint: Blueprint, bases: Iterable[Stage], where: Path) -> Stage:
    """The network that an adapter belongs to."""
    assert blueprint.adapter is not None
    wanted = blueprint.adapter.base
    for stage in bases:
        if stage.record.files.get(checkpoint.WEIGHTS) == wanted:
            return stage
    raise RunError(
        f"{where} is an adapter of a network that is not here (weights {wanted[:12]}…); open it in a run "
        "that has that network as its start or init"
    )


def weights(stage: Stage, bases: Sequence[Stage]) -> tuple[dict[str, Tensor], Blueprint]:
    """An expert's weights as those of one network, an adapter's merged into its base's; files are checked."""
    blueprint = checkpoint.read_blueprint(stage.verify(checkpoint.CONFIG))
    own = stage.verify(checkpoint.WEIGHTS)
    if blueprint.adapter is None:
        return checkpoint.read_tensors(own), blueprint
    base = base_of(blueprint, bases, stage.path)
    tensors = checkpoint.read_tensors(base.verify(checkpoint.WEIGHTS))
    update = adapter.read(own, blueprint)
    whole = blueprint.model_copy(update={"adapter": None})
    return adapter.merged(tensors, update, blueprint.adapter), whole
