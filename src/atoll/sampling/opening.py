"""From an address to a model: a run, a lone expert, a student, an export; here, in a store or on the Hub."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from atoll import devices
from atoll.config import SampleConfig
from atoll.data import hub
from atoll.data.hub import HUB
from atoll.data.text import TextEncoder
from atoll.errors import ConfigError, RunError
from atoll.models import checkpoint
from atoll.models.conditions import TextCondition
from atoll.runs import Run, Stage, inputs, read_json, rights
from atoll.runs.components import Card
from atoll.runs.records import NetworkContents, PartitionContents, RouterContents
from atoll.runs.shared import SharedNetworkContents
from atoll.sampling import arithmetic, bases, building, entering, grown, request
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.sampler import Sampler
from atoll.sampling.vocabulary import Encode, Vocabulary
from atoll.storage.cache import changed_parts, download_run, store_address

logger = logging.getLogger(__name__)

INDEX = "model_index.json"
"""What diffusers looks for first in a folder."""
PIPELINE = "AtollPipeline"
"""What it says there of an exported run."""
ENSEMBLE = "ensemble"
"""Where an exported folder has experts and router: a run without its data."""


Opened = Run | Stage[NetworkContents]
"""What an address leads to: a run, or a lone expert, as imported, which knows of no run."""


def open_address(address: str | Path) -> Opened:
    """What is there: a run, exported, in a store or on the Hub or not, a student, or a lone expert."""
    path = Path(address)
    return Stage(path, NetworkContents) if is_expert(path) else open_run(path)


def open_model(address: str | Path, device: str | None = None, **settings: Any) -> Sampler:
    """What an address leads to as one model."""
    return model_of(open_address(address), device, **settings)


def model_of(opened: Opened, device: str | None = None, **settings: Any) -> Sampler:
    """What was opened as one model."""
    if isinstance(opened, Run):
        return open_run_model(opened, device, **settings)
    where, config = devices.pick(device), request.settings(SampleConfig(), **settings)
    if config.extrapolate != 1:
        raise ConfigError("a lone expert does not know what it began with; give its run, or extrapolate=1")
    return Sampler(
        building.lone(opened, where, arithmetic.choose(config, where), shrink=config.shrink), config
    )


def open_run_model(
    run: Run, device: str | None = None, *, before: Sampler | None = None, **settings: Any
) -> Sampler:
    """A finished run as one model: all its experts, or the one that was distilled from them.

    With `before`, the same run as it was opened before a part came or went: only what is new is loaded.
    """
    where = devices.pick(device)
    config = _chosen(run, request.settings(run.config.sample, **settings), settings)
    if config.model != "ensemble":
        if config.allow is not None:
            raise ConfigError("a student has all parts in it; `allow` needs sample.model = 'ensemble'")
        student = open_run(student_folder(run, config.model))
        sampler = open_run_model(student, device, **{**settings, "model": "ensemble"})
        return replace(sampler, defaults=sampler.defaults.model_copy(update={"model": config.model}))
    known = None if before is None else before.ensemble
    serving = _serving(run, config, known)
    stages, shares = run.parts, grown.shares(run)
    parts = building.Parts(
        stages,
        shares.priors,
        _router(run),
        shares.counts,
        serving[0],
        bases.of_run(run),
        absent=_absent(run, config, serving),
        grown=partial(grown.router, run) if run.members.present else None,
        shared=_shared(run),
        weak=_weak(run) if config.against == "start" else None,
        untold=config.untold,
        began=_began(run) if config.extrapolate != 1 else (),
        extrapolate=config.extrapolate,
        shrink=config.shrink,
    )
    return Sampler(
        building.build(parts, where, config.resident, arithmetic.choose(config, where), known),
        config if len(serving) == len(stages) else config.model_copy(update={"experts": tuple(serving)}),
        vocabulary(run, str(where)),
    )


def _router(run: Run) -> Stage[RouterContents]:
    """Who is asked about samples; one that has learnt added parts must be the very one."""
    refreshed, stage = run.members.router, run.asked_router
    if refreshed is not None and not (stage.done and stage.digest == refreshed.digest):
        raise RunError(f"{stage.path} is gone or has changed; `atoll refresh` makes it again")
    return stage


def _weak(run: Run) -> Stage:
    """What experts began with, of which guidance by `against = "start"` moves away."""
    begins = inputs.beginning(run, 0)
    if begins is None or not begins.here:
        raise ConfigError(
            f"sample.against is 'start', and {run.path} has none here that its experts began with; "
            "add [start], or guide against 'nothing'"
        )
    return begins


def _began(run: Run) -> list[Stage]:
    """What each of the run's own experts began with, from which they are taken farther."""
    stages = [inputs.beginning(run, index) for index in range(run.config.partition.clusters)]
    here = [stage for stage in stages if stage is not None and stage.here]
    if len(here) < len(stages):
        raise ConfigError(
            f"sample.extrapolate is not 1, and {run.path} has not all here that its experts began with; "
            "add [start], or set it to 1"
        )
    return here


def _chosen(run: Run, config: SampleConfig, settings: Mapping[str, Any]) -> SampleConfig:
    """The settings with the guidance and extrapolation that were chosen for the run, if none is asked for."""
    open_to = {"guidance": config.guidances, "extrapolate": config.extrapolations}
    wanted = [key for key, values in open_to.items() if values and settings.get(key) is None]
    if not wanted or config.model != "ensemble":
        return config
    if not run.guidance.done:
        raise RunError(f"{run.guidance.path} is not there yet; `atoll run` chooses; or say {wanted[0]}=…")
    return config.model_copy(update={key: getattr(run.guidance.contents, key) for key in wanted})


def _shared(run: Run) -> Stage[SharedNetworkContents] | None:
    """The network for the low noise of all experts, if the run has one."""
    if run.config.shared is None:
        return None
    if not run.shared.done:
        raise RunError(f"{run.shared.path} is not trained yet; run `atoll run` on its recipe first")
    return run.shared


def student_folder(run: Run, model: str) -> Path:
    """The folder of a run's student, whose record says that it is a run of one expert."""
    stage = run.student if model == "student" else run.few_step
    if not stage.done:
        raise RunError(f"{stage.path} is not trained yet; run `atoll student` on its recipe first")
    teacher = stage.record.made_from.get("student")
    if teacher is not None and run.student.done and teacher != run.student.digest:
        raise RunError(
            f"{stage.path} was made from an earlier student; run `atoll student` again, or delete it"
        )
    return stage.path


def open_run(path: Path, *, samples: bool = False) -> Run:
    """The run in a folder, in an exported folder, in a store (`s3://…`) or on the Hub (`hub:owner/name`).

    A store is a bucket or a mounted folder; `samples` says whether its samples at rest are needed as well.
    """
    if (address := store_address(path)) is not None:
        path = download_run(address, samples=samples)
    if str(path).startswith(HUB):
        path = hub.download(str(path))
    return Run.open(path / ENSEMBLE if is_export(path) else path)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Run]:
    """The run whose parts are about to change: in a folder, exported, or in a store, where others see it."""
    if str(path).startswith(HUB):
        raise ConfigError(f"{path} cannot be changed from here; change the run, and export it again")
    if (address := store_address(path)) is None:
        yield open_run(path)
    else:
        with changed_parts(address) as run:
            yield run


def is_export(path: Path) -> bool:
    """Whether a folder is an exported run: diffusers' index of it says whose pipeline it is."""
    return (path / INDEX).is_file() and read_json(path / INDEX).get("_class_name") == PIPELINE


def exported_folder(name: str | Path) -> Path:
    """An exported folder here, or on the Hub by `owner/name`."""
    folder = Path(name)
    if not folder.is_dir():
        folder = hub.download(str(name))
    if not is_export(folder):
        raise RunError(f"{folder} is not an exported run (no {INDEX}); make one with `atoll export`")
    return folder


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


def entered_at(run: Run) -> float:
    """The time at which samples of a run enter as it is sampled: 1 is noise."""
    config = run.sampled_with
    if config.model != "ensemble" or config.entry != "auto":
        return 1.0 if config.entry == "auto" else float(config.entry)
    absent = frozenset(range(len(run.parts))).difference(_wanted(run, config))
    known = entering.of_parts(run.parts, grown.shares(run).priors, absent, devices.pick("cpu"))
    return 1.0 if known is None else known.t


def _serving(run: Run, config: SampleConfig, before: Ensemble | None = None) -> list[int]:
    """The experts that were asked for and are there, whole; the others stop everything, or are left out.

    Those that are in memory already were looked at when they came there.
    """
    whole, stages = [], run.parts
    held = before.experts if before is not None and isinstance(before.experts, Roster) else None
    for index in _wanted(run, config):
        stage = stages[index]
        try:
            if not stage.done:
                raise RunError(f"{stage.path} is not trained yet; run `atoll run` on its recipe first")
            if held is None or not held.holds(building.mark(stage)):
                stage.verify(checkpoint.WEIGHTS)
                building.verify_measured(stage)
            whole.append(index)
        except RunError as error:
            if config.missing == "fail":
                raise
            logger.warning("serving without expert %d: %s", index, error)
    if not whole:
        raise RunError(f"{run.path} has no expert that can serve; run `atoll run` on its recipe first")
    return whole


def _absent(run: Run, config: SampleConfig, serving: Sequence[int]) -> frozenset[int]:
    """The parts that cannot be asked, by whatever request: those that are gone, not allowed, or not whole."""
    known = _wanted(run, config.model_copy(update={"experts": None}))
    idle = {number for number in known if number not in serving and run.parts[number].here}
    return frozenset(range(len(run.parts))).difference(serving, idle if config.experts is not None else ())


def _wanted(run: Run, config: SampleConfig) -> list[int]:
    """The parts that are there and may be asked, of those that were asked for."""
    known = cards(run)
    if config.experts is not None:
        gone = set(config.experts) - known.keys()
        if gone:
            raise ConfigError(f"there is no part {min(gone)} here; there are {', '.join(map(str, known))}")
        known = {number: known[number] for number in config.experts}
    return list(known) if config.allow is None else rights.allowed(known, rights.parse(config.allow))


def cards(run: Run) -> dict[int, Card]:
    """Whose each part is that a run has, by number."""
    own, members = run.config.partition.clusters, run.members
    return {
        number: rights.own_card(run.config) if number < own else run.component(number).contents.card
        for number in members.serving(own)
    }


def is_expert(path: Path) -> bool:
    """Whether a folder holds one expert and does not know of what run: its record says what it is."""
    stage = Stage(path)
    contents = stage.record.contents if stage.done else None
    if not isinstance(contents, NetworkContents) or isinstance(contents, RouterContents):
        return False
    return getattr(contents, "alone", None) is None


def contents_of(run: Run) -> PartitionContents:
    """What is known of a run's samples, with its autoencoder where it is now."""
    contents = run.partition.contents
    if contents.autoencoder is None:
        return contents
    return contents.model_copy(update={"autoencoder": model_name(run, contents.autoencoder)})
