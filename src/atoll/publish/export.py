"""A finished run as a folder that others can open: a diffusers pipeline with a model card."""

import contextlib
import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.data import borrowed, hub
from atoll.data.hub import HUB
from atoll.errors import AtollError, ConfigError, reason, refusal
from atoll.models import checkpoint
from atoll.publish import card, public
from atoll.runs import RESOLVED, Run, Stage, edges, file_digest, graph, stamped, write_json
from atoll.runs.components import Members, write_members
from atoll.runs.contributors import read_contributors, write_contributors
from atoll.runs.records import PartitionContents, StageRecord
from atoll.sampling import grown
from atoll.sampling.building import MEASURED
from atoll.sampling.opening import ENSEMBLE, INDEX, PIPELINE, model_name, open_run_model
from atoll.sampling.sample import sample as draw

SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": ("FlowMatchEulerDiscreteScheduler", {}),
    "heun": ("FlowMatchHeunDiscreteScheduler", {}),
    "dpm++": (
        "DPMSolverMultistepScheduler",
        {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "solver_order": 2},
    ),
}
"""The scheduler of diffusers that stands for each of our solvers."""
TIMES = 1000
"""The steps into which diffusers divides the time."""
CODE = "pipeline.py"
"""The file that diffusers runs when it is told to trust the code beside a pipeline."""
COMPONENT = "component"
"""The file beside the weights that diffusers runs to know what they are, under the same condition."""
CODE_BESIDE = '''"""Opens this folder in diffusers; the class itself is in the package `atoll`."""

from atoll.publish.pipeline import {name}

__all__ = ["{name}"]
'''
BORROWED = {"text": "text_encoder", "autoencoder": "autoencoder"}
"""Models that a run borrows, and the folders that they get where they are not on the Hub."""
NOT_WEIGHTS = shutil.ignore_patterns("*.bin", "*.pt", "*.h5", "*.msgpack", "*.onnx", "onnx", "openvino", ".*")


def export(run: Run, target: str, licence: str = "unknown") -> dict[str, Any]:
    """Write a finished run to a new folder, or publish it on the Hub (`hub:owner/name`)."""
    if target.startswith(HUB):
        return _publish(run, target.removeprefix(HUB), licence)
    folder = Path(target)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty; give a new folder")
    try:
        with _all_or_nothing(folder) as beside:
            write_folder(run, beside, licence)
    except OSError as error:
        raise AtollError(f"cannot write {folder} ({refusal(error)}); give another folder") from None
    return {"folder": str(folder), "address": str(folder), **_sizes(folder)}


@contextlib.contextmanager
def _all_or_nothing(folder: Path) -> Iterator[Path]:
    """A folder beside the wanted one that takes its place when all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
        inner = Path(beside) / "folder"
        inner.mkdir()
        yield inner
        inner.rename(folder)


def _sizes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def write_folder(run: Run, folder: Path, licence: str) -> None:
    """All that the pipeline is: weights, what they mean, scheduler, code, samples, card."""
    open_run_model(run)  # refuses what is unfinished or damaged before anything is written
    _write_ensemble(run, folder / ENSEMBLE)
    _write_scheduler(run.config, folder / "scheduler")
    _write_code(folder / CODE, "AtollPipeline")
    _write_code(folder / ENSEMBLE / f"{COMPONENT}.py", "AtollEnsemble")
    write_json(folder / INDEX, _index(run.config))
    drawn = draw(run, folder / "drawn")
    (folder / "drawn" / "grid.png").rename(folder / "samples.png")
    shutil.rmtree(folder / "drawn")
    if (listed := read_contributors(run.path)) is not None:
        write_contributors(folder, listed)
    (folder / "README.md").write_text(card.card(run, licence, drawn), encoding="utf-8")


def _write_code(path: Path, name: str) -> None:
    path.write_text(CODE_BESIDE.format(name=name), encoding="utf-8")


def _index(config: RunConfig) -> dict[str, Any]:
    """What diffusers is to load, and by which classes."""
    return {
        "_class_name": PIPELINE,
        **_version(),
        "ensemble": [COMPONENT, "AtollEnsemble"],
        "scheduler": ["diffusers", SCHEDULERS[config.sample.solver][0]],
    }


def _version() -> dict[str, str]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return {"_diffusers_version": importlib.metadata.version("diffusers")}
    return {}


def _write_scheduler(config: RunConfig, folder: Path) -> None:
    name, settings = SCHEDULERS[config.sample.solver]
    shift = "flow_shift" if name.startswith("DPM") else "shift"
    written = {"_class_name": name, **_version(), "num_train_timesteps": TIMES, shift: config.sample.shift}
    write_json(folder / "scheduler_config.json", {**written, **settings})


def _write_ensemble(run: Run, folder: Path) -> None:
    """A run without its data: no sample, caption or name of a file goes with it."""
    for k in range(run.config.partition.clusters):
        if k not in run.members.dropped:
            _copy_network(run.expert(k), folder / "experts" / f"{k:02d}")
    if run.router.done:
        _copy_network(run.router, folder / "router")
    if run.config.shared is not None:
        _copy_network(run.shared, folder / "shared")
    for base in _bases(run):
        _copy_network(base, folder / base.path.relative_to(run.path))
    Stage(folder / "partition").write(StageRecord.of({}, {}, _borrowing(run, folder)))
    config = public.config(run.config)
    if config.sample.chooses:  # what was chosen is no longer a question
        config = config.model_copy(update={"sample": run.guidance.contents.settle(config.sample)})
    write_json(folder / RESOLVED, stamped(config.model_dump(mode="json")))
    copy = Run.open(folder)
    _copy_weak(run, copy)
    if run.members != Members():
        _copy_members(run, copy)


def _copy_members(run: Run, copy: Run) -> None:
    """What was added, whole, with the base of adapters and the rows by which the others are known."""
    for member in run.members.present:
        shutil.copytree(run.component(member.number).path, copy.component(member.number).path)
    if run.members.present:
        if run.start.done and not copy.start.done:
            _copy_network(run.start, copy.start.path)
        for k in range(run.config.partition.clusters):
            shutil.copyfile(grown.known_rows(run, k), grown.known_rows(copy, k))
    if run.members.router is not None:
        _copy_network(run.asked_router, copy.refreshed(run.members.router.folder).path)
    write_members(copy.path, run.members)


def _bases(run: Run) -> list[Stage]:
    """The networks that adapters among the experts belong to."""
    return [graph.node(run, name).stage for name in edges.bases(run.config)]


def _copy_weak(run: Run, copy: Run) -> None:
    """What samples are guided away from, into its place in the copy, if it is not there as a base."""
    for name in edges.weak(run.config):
        place, begins = graph.node(copy, name).stage, graph.node(run, name).stage
        if begins.done and not place.done:
            _copy_network(begins, place.path)


def _borrowing(run: Run, folder: Path) -> PartitionContents:
    """What is known of the samples, with the models that they need in the folder."""
    contents = run.partition.contents
    contents = contents.model_copy(update={"features": public.model(contents.features)})
    if contents.text is not None:
        text = contents.text.model_copy(update={"model": _borrow(run, contents.text.model, folder, "text")})
        contents = contents.model_copy(update={"text": text})
    if contents.autoencoder is not None:
        taken = _borrow(run, contents.autoencoder, folder, "autoencoder")
        contents = contents.model_copy(update={"autoencoder": taken})
    return contents


def _copy_network(stage: Stage, folder: Path) -> None:
    """Weights, blueprint and record; neither the optimiser nor the log of training."""
    folder.mkdir(parents=True)
    measured = [name for name in MEASURED if name in stage.record.files]
    names = (checkpoint.WEIGHTS, checkpoint.CONFIG, *measured)
    for name in names:
        shutil.copyfile(stage.verify(name), folder / name)
    files = {name: file_digest(folder / name) for name in names}
    Stage(folder).write(StageRecord.of({}, files, public.contents(stage.contents)))


def _borrow(run: Run, name: str, folder: Path, kind: str) -> str:
    """Take a model along that lies in a folder here; one on the Hub keeps its name."""
    source = model_name(run, name)
    if not borrowed.is_folder(source):
        return name
    shutil.copytree(Path(source).expanduser(), folder / BORROWED[kind], ignore=NOT_WEIGHTS)
    return BORROWED[kind]


def _publish(run: Run, name: str, licence: str) -> dict[str, Any]:
    """Export to a folder that goes away, and push that."""
    if not public.HUB_NAME.fullmatch(name):
        raise ConfigError(f"'{name}' is no name on the Hub; write hub:owner/name")
    library = hub.library(f"{HUB}{name}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "export"
        folder.mkdir()
        write_folder(run, folder, licence)
        sizes = _sizes(folder)
        api = library.HfApi()
        try:
            api.create_repo(name, exist_ok=True)
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export from Atoll")
        except (OSError, ValueError) as error:
            raise AtollError(
                f"{HUB}{name} cannot be published: {reason(error)}; log in with `hf auth login`, and check "
                "the name"
            ) from None
    return {"hub": name, "address": str(commit.commit_url), **sizes}
