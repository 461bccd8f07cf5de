"""From a finished run to samples: pictures on disk, and who made them."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from atoll.config import SampleConfig
from atoll.data import store
from atoll.errors import AtollError, RunError
from atoll.models import checkpoint, routing
from atoll.models.ensemble import Ensemble, Progress, Samples, sampling_settings
from atoll.models.expert import as_expert
from atoll.models.roster import Roster
from atoll.runs import Run, Stage, replacing, write_json

logger = logging.getLogger(__name__)

PALETTE = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#777777"]
"""One colour per expert, told apart by people who see colours differently (Tol's bright set)."""


def load_ensemble(path: Path, device: str | None = None, **settings: Any) -> Ensemble:
    """The experts and router of a finished run as one model; or a lone expert, as `atoll import` makes it."""
    where = torch.device(device) if device else _best_device()
    if is_expert(path):
        network, blueprint = _network(Stage(path), where)
        return Ensemble(
            experts=[as_expert(network, blueprint.objective)],
            priors=torch.ones(1, device=where),
            shape=blueprint.shape,
            classes=blueprint.classes,
            text=blueprint.text,
        )
    run = Run.open(path)
    how = sampling_settings(run.config.sample, **settings)
    serving = _serving(run, how)
    blueprint = checkpoint.read_blueprint(run.expert(serving[0]).path / checkpoint.CONFIG)
    stages = [run.expert(index) for index in range(run.config.partition.clusters)]
    return Ensemble(
        experts=Roster([partial(_expert, stage, where) for stage in stages], how.resident),
        priors=torch.tensor(run.partition.contents["priors"], device=where),
        shape=tuple(blueprint.shape),
        router=_network(run.router, where)[0] if run.router.done else None,
        classes=blueprint.classes,
        text=blueprint.text,
        defaults=how if len(serving) == len(stages) else how.model_copy(update={"experts": tuple(serving)}),
        band=_band(run.router),
    )


def _serving(run: Run, how: SampleConfig) -> list[int]:
    """The experts that were asked for and are there, whole; the others stop everything, or are left out."""
    wanted = range(run.config.partition.clusters) if how.experts is None else how.experts
    whole = []
    for index in wanted:
        stage = run.expert(index)
        try:
            if not stage.done:
                raise RunError(f"{stage.path} is not trained yet; run `atoll run` on its recipe first")
            stage.verify(checkpoint.WEIGHTS)
            whole.append(index)
        except RunError as error:
            if how.missing == "fail":
                raise
            logger.warning("serving without expert %d: %s", index, error)
    if not whole:
        raise RunError(f"{run.path} has no expert that can serve; run `atoll run` on its recipe first")
    return whole


def _expert(stage: Stage, device: torch.device) -> torch.nn.Module:
    """One expert as a velocity; its files were checked when it was asked to serve."""
    network, blueprint = checkpoint.load(
        stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device
    )
    return as_expert(network, blueprint.objective)


def _band(router: Stage) -> routing.Band:
    """The router's band, if it was measured."""
    found = router.contents.get("band") if router.done else None
    return routing.Band(*found) if found else routing.Band()


def is_expert(path: Path) -> bool:
    """Whether a folder holds one expert rather than a run."""
    return (path / checkpoint.CONFIG).is_file() and (path / checkpoint.WEIGHTS).is_file()


def _network(stage: Stage, device: torch.device) -> tuple[torch.nn.Module, checkpoint.Blueprint]:
    if not stage.done:
        raise RunError(f"{stage.path} is not trained yet; run `atoll run` on its recipe first")
    return checkpoint.load(stage.verify(checkpoint.WEIGHTS), stage.verify(checkpoint.CONFIG), device)


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def sample(
    run: Run,
    out: Path,
    *,
    label: int | Sequence[int] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a finished run and write the samples, a grid of them, and who made which."""
    ensemble = load_ensemble(run.path, **settings)
    samples = ensemble.trace(label=label, progress=progress)
    contents = run.cluster(0).contents
    return write_samples(samples, contents, out)


def sample_expert(
    folder: Path,
    out: Path,
    *,
    label: int | Sequence[int] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a lone expert; it does not know what its values mean, so they are written as they are."""
    samples = load_ensemble(folder).trace(label=label, progress=progress, **settings)
    return write_samples(samples, {"kind": "unknown"}, out)


def write_samples(samples: Samples, contents: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write samples as arrays and, where they are pictures, as a grid."""
    experts = samples.expert.tolist()
    written = {"samples": str(out / "samples.npy"), "experts": experts}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / "samples.npy") as beside, beside.open("wb") as file:
            np.save(file, samples.x_0.cpu().numpy(), allow_pickle=False)
        if contents["kind"] == "image":
            pixels = store.to_pixels(samples.x_0, contents)
            written["grid"] = str(out / "grid.png")
            with replacing(out / "grid.png") as beside:
                grid(pixels, experts).save(beside, format="PNG")
        write_json(out / "samples.json", {"experts": experts, "shares": samples.shares.tolist()})
    except OSError as error:
        raise AtollError(f"cannot write to {out} ({error.strerror or error}); give another --out") from None
    return written


def grid(pixels: NDArray[np.uint8], experts: Sequence[int] | None = None, columns: int = 0) -> Image.Image:
    """One picture of many, about square, each with a line in the colour of its expert under it."""
    count, height, width, channels = pixels.shape
    columns = columns or max(1, round(count**0.5))
    zoom = max(1, round(56 / max(height, width)))
    mark, gap = (3, 4) if experts is not None else (0, 2)
    cell_w, cell_h = width * zoom + gap, height * zoom + gap + mark
    sheet = Image.new("RGB", (columns * cell_w + gap, -(-count // columns) * cell_h + gap), "white")
    for index, values in enumerate(pixels):
        picture = Image.fromarray(values[..., 0] if channels == 1 else values)
        picture = picture.resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
        x, y = gap + index % columns * cell_w, gap + index // columns * cell_h
        sheet.paste(picture, (x, y))
        if experts is not None:
            sheet.paste(
                PALETTE[experts[index] % len(PALETTE)],
                (x, y + height * zoom, x + width * zoom, y + height * zoom + mark),
            )
    return sheet
