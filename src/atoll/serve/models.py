"""What is served: a finished run and the students that were distilled from it, by name."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError
from atoll.runs import Run
from atoll.runs.components import Card
from atoll.runs.records import SampleFormat
from atoll.sampling import opening
from atoll.sampling.sampler import Sampler
from atoll.storage import cache

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Model:
    """One model with its name and what its samples mean."""

    name: str
    sampler: Sampler
    contents: SampleFormat | None = None
    """None where nobody knows: then samples are numbers and no more."""
    run: Run | None = None
    """The run it comes from, if it is one."""
    cards: Mapping[int, Card] = field(default_factory=dict)
    """Whose each part is that may be asked at all."""
    distilled: bool = False
    """Whether it is one network that has all parts in it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it was opened with."""
    address: Path | None = None
    """Where its run lies, where parts may come and go."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, *grid) of one sample."""
        return self.sampler.ensemble.shape

    @property
    def kind(self) -> str:
        """What samples are: image, series, video, latent, or just numbers."""
        return "numbers" if self.contents is None else self.contents.kind

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes that it is told, numbers where they have none; none where it is told none."""
        names = self.sampler.vocabulary.class_names
        classes = self.sampler.ensemble.classes
        return tuple(itertools.islice(itertools.chain(names, map(str, range(len(names), classes))), classes))


def open_models(address: Path, device: str | None = None, **settings: Any) -> dict[str, Model]:
    """The models of a run, an export or a lone expert, here, in a store or on the Hub.

    The first is meant where a request names none.
    """
    if opening.is_expert(address):
        name = address.resolve().name
        return {name: Model(name, opening.open_model(address, device, **settings))}
    run = opening.open_run(address)
    contents, name = opening.contents_of(run), run.config.name
    sampler = opening.open_run_model(run, device, **settings)
    cards = _cards(run, sampler)
    distilled = settings.get("model", ENSEMBLE) != ENSEMBLE
    opened = {"device": device, **settings}
    models = {name: Model(name, sampler, contents, run, cards, distilled, opened, address)}
    for kind, stage in (("student", run.student), ("few-step", run.few_step)):
        if stage.done and not {"model", "allow"} & settings.keys():
            sampler = opening.open_run_model(run, device, **{**settings, "model": kind})
            models[f"{name}/{kind}"] = Model(f"{name}/{kind}", sampler, contents, run, cards, True)
    return models


def reopened(model: Model) -> Model:
    """The same with the parts that its run has now; what is in memory stays there."""
    if model.run is None or model.distilled:
        raise ConfigError(f"'{model.name}' is one network; parts come and go in an ensemble")
    place = None if model.address is None else cache.store_address(model.address)
    if place is not None:
        cache.renew_parts(place)
    sampler = opening.open_run_model(model.run, before=model.sampler, **model.settings)
    return replace(model, sampler=sampler, cards=_cards(model.run, sampler))


def _cards(run: Run, sampler: Sampler) -> dict[int, Card]:
    """Whose each part is that can be asked."""
    absent = sampler.ensemble.absent
    return {number: card for number, card in opening.cards(run).items() if number not in absent}
