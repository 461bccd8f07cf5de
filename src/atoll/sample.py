"""From a finished run, or an exported one, to samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atoll.config import SampleConfig
from atoll.data.text import TextEncoder
from atoll.errors import ConfigError, Interrupted, RunError
from atoll.gallery import Writer
from atoll.models import checkpoint
from atoll.models.conditions import TextCondition
from atoll.models.ensemble import Ensemble, Progress, sampling_settings
from atoll.models.vocabulary import Asked, Encode, Vocabulary
from atoll.runs import Run, Stage

HUB = "hub:"
INDEX = "model_index.json"
"""What diffusers looks for first in a folder; by it an exported folder is known."""
ENSEMBLE = "ensemble"
"""Where an exported folder has experts and router: a run without its data."""


def load_ensemble(path: Path, device: str | None = None) -> Ensemble:
    """The experts and router of a finished run, an exported folder or one on the Hub, as one model."""
    run = open_run(path)
    where = torch.device(device) if device else _best_device()
    contents = run.partition.contents
    experts = [_network(run.expert(index), where) for index in range(run.config.partition.clusters)]
    router = _network(run.router, where)[0] if run.router.done else None
    blueprint = experts[0][1]
    return Ensemble(
        experts=[network for network, _ in experts],
        priors=torch.tensor(contents["priors"], device=where),
        shape=tuple(blueprint.shape),
        router=router,
        classes=blueprint.classes,
        text=blueprint.text,
        defaults=run.config.sample,
        vocabulary=vocabulary(run, str(where)),
    )


def open_run(path: Path) -> Run:
    """The run in a folder, also where it lies in an exported folder or on the Hub (`hub:owner/name`)."""
    if str(path).startswith(HUB):
        path = _download(str(path).removeprefix(HUB))
    return Run.open(path / ENSEMBLE if (path / INDEX).is_file() else path)


def default_out(path: Path) -> Path:
    """Where samples go unless the command says otherwise: into the run, but not into what was exported."""
    return path / "samples" if (path / "resolved.json").is_file() else Path("samples")


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
    about = contents.get("text")
    encode = None if about is None else _encoder(run, about["model"], about["tokens"], device)
    return Vocabulary(tuple(contents["class_names"]), encode)


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
    label: Asked | None = None,
    prompt: str | Sequence[str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a finished run and write the samples, pictures of them, and who made which.

    Pictures are written batch by batch; whoever is interrupted keeps those that are finished.
    """
    ensemble = load_ensemble(run.path)
    how = sampling_settings(ensemble.defaults, **settings)
    wanted = _asked_words(ensemble, how, label, prompt)
    writer = Writer(out, run.partition.contents, how, wanted)
    try:
        ensemble.trace(label=label, prompt=prompt, progress=progress, finished=writer.add, **settings)
    except KeyboardInterrupt:
        written = writer.finish()
        raise Interrupted(
            f"stopped after {len(writer)} of {how.num} samples; they are in {out}"
            if written
            else "stopped before the first samples were done; nothing was written"
        ) from None
    return writer.finish()


def _asked_words(
    ensemble: Ensemble, how: SampleConfig, label: Asked | None, prompt: str | Sequence[str] | None
) -> list[dict[str, str]]:
    """What each sample is asked to be, in words: a prompt, a class, or nothing."""
    if ensemble.kind == "class":
        numbers = ensemble.vocabulary.labels(label, ensemble.kind) or range(ensemble.classes)
        words = [{"class": ensemble.vocabulary.name(number)} for number in numbers]
    else:
        prompts = [prompt] if isinstance(prompt, str) else list(prompt or how.prompts)
        words = [{"prompt": text} for text in prompts] if ensemble.kind == "text" else []
    return [words[index % len(words)] if words else {} for index in range(how.num)]
