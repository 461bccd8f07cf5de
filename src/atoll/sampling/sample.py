"""From a finished run, or an exported one, to samples."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atoll import devices
from atoll.config import SampleConfig
from atoll.data.text import TextEncoder
from atoll.errors import AtollError, ConfigError, Interrupted, RunError
from atoll.flow.mixture import given_class
from atoll.models import checkpoint
from atoll.models.conditions import TextCondition
from atoll.models.expert import as_expert
from atoll.runs import RESOLVED, Run, Stage
from atoll.runs.records import PartitionContents, RouterContents, SampleFormat
from atoll.sampling import routing
from atoll.sampling.ensemble import Ensemble, Progress, sampling_settings
from atoll.sampling.gallery import Writer
from atoll.sampling.roster import Roster
from atoll.sampling.vocabulary import Asked, Encode, Prompts, Vocabulary
from atoll.storage.cache import download_run, store_address

logger = logging.getLogger(__name__)

HUB = "hub:"
INDEX = "model_index.json"
"""What diffusers looks for first in a folder; by it an exported folder is known."""
ENSEMBLE = "ensemble"
"""Where an exported folder has experts and router: a run without its data."""


def load_ensemble(path: Path, device: str | None = None, **settings: Any) -> Ensemble:
    """A finished run, exported or on the Hub or not, as one model; or a lone expert, as imported."""
    where = devices.pick(device)
    if is_expert(path):
        network, blueprint = _network(Stage(path), where)
        return Ensemble(
            experts=[as_expert(network, blueprint.objective)],
            priors=torch.ones(1, device=where),
            shape=blueprint.shape,
            classes=blueprint.classes,
            text=blueprint.text,
            maps=blueprint.steps,
        )
    run = open_run(path)
    how = sampling_settings(run.config.sample, **settings)
    if how.model != "ensemble":
        return load_ensemble(student_folder(run, how.model), device, **{**settings, "model": "ensemble"})
    serving = _serving(run, how)
    blueprint = checkpoint.read_blueprint(run.expert(serving[0]).path / checkpoint.CONFIG)
    stages = [run.expert(index) for index in range(run.config.partition.clusters)]
    contents = run.partition.contents
    priors = torch.tensor(contents.priors, device=where)
    counts = contents.labels if blueprint.classes else None
    return Ensemble(
        experts=Roster(
            [partial(_expert, stage, where) for stage in stages],
            how.resident,
            [stage.path / checkpoint.WEIGHTS for stage in stages],
        ),
        priors=priors,
        by_class=None if counts is None else given_class(torch.tensor(counts, device=where), priors),
        shape=tuple(blueprint.shape),
        router=_network(run.router, where)[0] if run.router.done else None,
        classes=blueprint.classes,
        text=blueprint.text,
        defaults=how if len(serving) == len(stages) else how.model_copy(update={"experts": tuple(serving)}),
        band=_band(run.router),
        vocabulary=vocabulary(run, str(where)),
        maps=blueprint.steps,
    )


def student_folder(run: Run, model: str) -> Path:
    """The folder of a run's student, which is a run of one expert itself."""
    stage = run.student if model == "student" else run.few_step
    if not stage.done:
        raise RunError(f"{stage.path} is not trained yet; run `atoll student` on its recipe first")
    teacher = stage.record.made_from.get("student")
    if teacher is not None and run.student.done and teacher != run.student.digest:
        raise RunError(
            f"{stage.path} was made from an earlier student; run `atoll student` again, or delete it"
        )
    return stage.path


def open_run(path: Path) -> Run:
    """The run in a folder, in an exported folder, in a store (`s3://…`) or on the Hub (`hub:owner/name`)."""
    if (address := store_address(path)) is not None:
        path = download_run(address)
    if str(path).startswith(HUB):
        path = _download(str(path).removeprefix(HUB))
    return Run.open(path / ENSEMBLE if (path / INDEX).is_file() else path)


def exported_folder(name: str | Path) -> Path:
    """An exported folder here, or on the Hub by `owner/name`."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _download(str(name).removeprefix(HUB))
    if not (folder / INDEX).is_file():
        raise RunError(f"{folder} is not an exported run (no {INDEX}); make one with `atoll export`")
    return folder


def default_out(path: Path) -> Path:
    """Where samples go unless the command says otherwise: into the run or the expert, not into an export."""
    own = (path / RESOLVED).is_file() or is_expert(path)
    return path / "samples" if own else Path("samples")


def _download(name: str) -> Path:
    try:
        import huggingface_hub  # noqa: PLC0415 - of the extra hf, and only needed for what is on the Hub
    except ImportError:
        raise ConfigError(f"{HUB}{name} needs the library huggingface_hub; pip install 'atoll[hf]'") from None
    try:
        return Path(huggingface_hub.snapshot_download(name))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(f"{HUB}{name} cannot be had: {reason}; check its name and your access") from None


def vocabulary(run: Run, device: str = "auto") -> Vocabulary:
    """What names of classes and prompts mean in this run."""
    contents = run.partition.contents
    about = contents.text
    encode = None if about is None else _encoder(run, about.model, about.tokens, device)
    return Vocabulary(contents.class_names, encode)


def _encoder(run: Run, name: str, tokens: int, device: str) -> Encode:
    """The run's text encoder, opened when it is first needed; an exported run has it in its folder."""
    opened: list[TextEncoder] = []

    def encode(prompts: Sequence[str]) -> TextCondition:
        if not opened:
            opened.append(TextEncoder(model_name(run, name), tokens, device))
        states = opened[0](prompts)
        return TextCondition(states.tokens, states.mask, states.pooled)

    return encode


def model_name(run: Run, name: str) -> str:
    """Where a borrowed model is: in the run's own folder, or wherever its name says."""
    inside = run.path / name
    return str(inside) if inside.is_dir() else name


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


def _band(router: Stage[RouterContents]) -> routing.Band:
    """The router's band, if it was measured."""
    found = router.contents.band if router.done else None
    return routing.Band(*found) if found else routing.Band()


def is_expert(path: Path) -> bool:
    """Whether a folder holds one expert and does not know of what run."""
    here = [(path / name).is_file() for name in (checkpoint.CONFIG, checkpoint.WEIGHTS, RESOLVED)]
    return here == [True, True, False]


def contents_of(run: Run) -> PartitionContents:
    """What is known of a run's samples, with its autoencoder where it is now."""
    contents = run.partition.contents
    if contents.autoencoder is None:
        return contents
    return contents.model_copy(update={"autoencoder": model_name(run, contents.autoencoder)})


def _network(stage: Stage, device: torch.device) -> tuple[torch.nn.Module, checkpoint.Blueprint]:
    if not stage.done:
        raise RunError(f"{stage.path} is not trained yet; run `atoll run` on its recipe first")
    return checkpoint.load(stage.verify(checkpoint.WEIGHTS), stage.verify(checkpoint.CONFIG), device)


def sample(
    run: Run,
    out: Path,
    *,
    label: Asked | None = None,
    prompt: Prompts | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a finished run and write the samples, pictures of them, and who made which.

    Pictures are written batch by batch; whoever is interrupted keeps those that are finished.
    """
    ensemble = load_ensemble(run.path, **settings)
    return _sample_to(ensemble, contents_of(run), out, label, prompt, progress)


def sample_expert(
    folder: Path,
    out: Path,
    *,
    label: Asked | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a lone expert; it does not know what its values mean, so they are written as they are."""
    ensemble = load_ensemble(folder)
    ensemble.defaults = sampling_settings(ensemble.defaults, **settings)
    return _sample_to(ensemble, None, out, label, None, progress)


def _sample_to(
    ensemble: Ensemble,
    contents: SampleFormat | None,
    out: Path,
    label: Asked | None,
    prompt: Prompts | None,
    progress: Progress | None,
) -> dict[str, Any]:
    how = ensemble.defaults
    writer = Writer(out, contents, how, _asked_words(ensemble, how, label, prompt))
    writer.open()
    try:
        made = ensemble.trace(label=label, prompt=prompt, progress=progress, finished=writer.add)
    except KeyboardInterrupt:
        written = writer.finish()
        raise Interrupted(
            f"stopped after {len(writer)} of {how.num} samples; they are in {out}"
            if written
            else "stopped before the first samples were done; nothing was written"
        ) from None
    except AtollError:
        if not len(writer):
            writer.finish()
        raise
    written = writer.finish(made.certainty)
    chosen = {"strategy_asked": how.strategy, "certainty": made.certainty}
    return {**written, **chosen, "networks": len(ensemble.experts)}


def strategy_sentence(written: Mapping[str, Any]) -> str:
    """Which strategy was used, and why, where it was not asked for by name."""
    if written["networks"] == 1:
        return "One network, so there is nothing to choose"
    said = f"Strategy {written['strategy']}"
    if written["strategy_asked"] != "auto":
        return said
    if written["certainty"] is None:
        return f"{said} (auto: exact at the cost of one expert)"
    return f"{said} (auto: the router is {written['certainty']:.0%} sure of the cluster at t = 1)"


def _asked_words(
    ensemble: Ensemble, how: SampleConfig, label: Asked | None, prompt: Prompts | None
) -> list[dict[str, str]]:
    """What each sample is asked to be, in words: a prompt, a class, or nothing."""
    if ensemble.kind == "class":
        numbers = ensemble.vocabulary.labels(label, ensemble.kind) or range(ensemble.classes)
        words = [{"class": ensemble.vocabulary.name(number)} for number in numbers]
    else:
        prompts = [prompt] if isinstance(prompt, str) else list(prompt or how.prompts)
        words = [{"prompt": text} for text in prompts] if ensemble.kind == "text" else []
    return [words[index % len(words)] if words else {} for index in range(how.num)]
