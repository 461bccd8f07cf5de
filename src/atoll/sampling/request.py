"""What is asked of a model: validated once, before anything is loaded or drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from atoll.config import NAMED, STRATEGIES, STRATEGY, SampleConfig, did_you_mean, explain
from atoll.errors import ConfigError
from atoll.flow import draws, mixture
from atoll.models.conditions import Condition, TextCondition
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.vocabulary import Asked, Prompts, Vocabulary

OPENING = (
    "model",
    "against",
    "untold",
    "extrapolate",
    "shrink",
    "precision",
    "tf32",
    "compile",
    "resident",
    "missing",
    "allow",
)
"""Settings of [sample] that are decided when a model is opened, and not again by each request."""


@dataclass(frozen=True)
class Request:
    """Samples that are wanted; sample i depends on (seed, i) and on what it is told alone.

    With `seeds`, on its own seed instead of the common one and its number.
    """

    settings: SampleConfig
    labels: tuple[int, ...] | None = None
    """Classes, taken in turn."""
    text: TextCondition | None = None
    """States of texts, taken in turn."""
    words: tuple[tuple[str, str], ...] = ()
    """What samples are asked to be in words, taken in turn: ("class", a name) or ("prompt", a text)."""
    clusters: tuple[int, ...] | None = None
    """The expert of each sample, for the strategy `oracle`."""
    seeds: tuple[int, ...] | None = None
    """The seed of each sample, which is then the first of its seed."""
    begins: Tensor | None = None
    """The noise of each sample, where that is given; seeds then say nothing of it."""

    @property
    def num(self) -> int:
        """How many samples."""
        return self.settings.num

    def asked(self, index: int) -> dict[str, str]:
        """What a sample is asked to be, in words."""
        return dict([self.words[index % len(self.words)]]) if self.words else {}

    def about(self, index: int) -> dict[str, str]:
        """What a sample says of itself: with this it can be made again."""
        settings, (seed, number) = self.settings, self.origin(index)
        origin = {} if self.begins is not None else {"seed": str(seed), "index": str(number)}
        return {
            "Software": "Atoll",
            **self.asked(index),
            **origin,
            "solver": settings.solver,
            "steps": str(settings.steps),
            "guidance": str(settings.guidance),
        }

    def told(self, indices: Sequence[int], ensemble: Ensemble) -> Condition:
        """What these samples are told, as experts take it."""
        condition: Condition = None
        if self.labels is not None:
            condition = torch.tensor([self.labels[index % len(self.labels)] for index in indices])
        elif self.text is not None:
            condition = self.text[torch.tensor([index % len(self.text) for index in indices])]
        return ensemble.told(condition, len(indices))

    def origin(self, index: int) -> tuple[int, int]:
        """The seed of a sample and its number under that seed: all that its random numbers depend on."""
        return (self.settings.seed, index) if self.seeds is None else (self.seeds[index], 0)

    def noise(self, indices: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The noise from which these samples begin."""
        if self.begins is not None:
            return self.begins[torch.as_tensor(indices)]
        origins = map(self.origin, indices)
        return torch.cat([draws.sample_noise(seed, [number], shape) for seed, number in origins])

    def uniform(self, indices: Sequence[int], purpose: str) -> Tensor:
        """One uniform number for each of these samples."""
        origins = map(self.origin, indices)
        return torch.cat([draws.sample_uniform(seed, [number], purpose) for seed, number in origins])

    def served(self, posterior: Tensor) -> Tensor:
        """The posterior among the experts that serve, at the temperature that was asked for."""
        if self.settings.experts is not None:
            mask = torch.zeros(posterior.shape[1], dtype=torch.bool)
            mask[list(self.settings.experts)] = True
            posterior = mixture.restrict(posterior, mask.to(posterior.device, non_blocking=True))
        posterior = mixture.temper(posterior, self.settings.temperature)
        if not self.settings.protect:
            return posterior
        halves = torch.zeros(2, posterior.shape[1], dtype=torch.bool)
        serving = sorted(set(self.settings.experts or range(posterior.shape[1])))
        halves[0, serving[::2]], halves[1, serving[1::2]] = True, True
        return mixture.protect(posterior, *halves.to(posterior.device, non_blocking=True))


def request(
    ensemble: Ensemble,
    vocabulary: Vocabulary,
    defaults: SampleConfig,
    *,
    label: Asked | None = None,
    prompt: Prompts | None = None,
    text: TextCondition | None = None,
    cluster: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    noise: Tensor | None = None,
    **changes: Any,
) -> Request:
    """The recipe's settings with what was said explicitly, checked against the model that is asked."""
    config = settings(defaults, **_counted(seeds, changes))
    for key in OPENING:
        if getattr(config, key) != getattr(defaults, key):
            raise ConfigError(
                f"{key} is decided when a model is opened; say it there: atoll.load(…, {key}=…)"
            )
    experts = len(ensemble.experts)
    _check(config, ensemble)
    if config.strategy == "oracle" and cluster is None:
        raise ConfigError("the strategy 'oracle' needs the cluster of every sample")
    if cluster is not None and len(cluster) != config.num:
        raise ConfigError(
            f"a request of {config.num} needs the cluster of every sample, not of {len(cluster)}"
        )
    if cluster is not None and (min(cluster) < 0 or max(cluster) >= experts):
        raise ConfigError(f"clusters are numbered 0 to {experts - 1}")
    clusters = None if cluster is None else tuple(cluster)
    own = None if seeds is None else tuple(seeds)
    begins = None if noise is None else _begins(noise, (config.num, *ensemble.shape))
    if prompt is not None and ensemble.kind == "class":
        vocabulary.texts(prompt, ensemble.kind)  # which says what to give instead
    numbers = _labels(vocabulary.labels(label, ensemble.kind), ensemble.classes)
    if numbers is not None:
        names = tuple(("class", vocabulary.name(number)) for number in numbers)
        return Request(config, labels=numbers, words=names, clusters=clusters, seeds=own, begins=begins)
    prompts = (prompt,) if isinstance(prompt, str) else prompt
    if prompts is None and text is None and ensemble.kind == "text":
        prompts = config.prompts or None
    text = text if prompts is None else vocabulary.texts(prompts, ensemble.kind)
    words = tuple(("prompt", sentence) for sentence in prompts or ())
    return Request(config, text=text, words=words, clusters=clusters, seeds=own, begins=begins)


def _begins(noise: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Noise that was given, on the CPU as all noise is drawn."""
    if tuple(noise.shape) != shape or not noise.isfinite().all():
        raise ConfigError(f"noise must be finite and of shape {list(shape)}, not {list(noise.shape)}")
    return noise.cpu().float()


def _counted(seeds: Sequence[int] | None, changes: dict[str, Any]) -> dict[str, Any]:
    """As many samples as there are seeds, if each has its own."""
    if seeds is None:
        return changes
    if not seeds or min(seeds) < 0:
        raise ConfigError("seeds are numbers from 0 on, one for each sample")
    if changes.get("num") not in (None, len(seeds)):
        raise ConfigError(f"{changes['num']} samples and {len(seeds)} seeds; give one seed for each sample")
    return {**changes, "num": len(seeds)}


def _check(config: SampleConfig, ensemble: Ensemble) -> None:
    experts = len(ensemble.experts)
    serving = range(experts) if config.experts is None else config.experts
    if min(serving) < 0 or max(serving) >= experts:
        raise ConfigError(f"experts are numbered 0 to {experts - 1}, not {list(serving)}")
    gone = ensemble.absent.intersection(serving)
    if config.experts is not None and gone:
        raise ConfigError(f"part {min(gone)} does not serve here; ask others, or leave out `experts`")
    if config.protect and (config.strategy not in ("auto", "full") or len(set(serving)) < 2):
        raise ConfigError("protect composes two halves at every step; use strategy 'full' and several parts")
    kind, _, number = config.strategy.partition("-")
    if kind == "top" and experts > 1 and int(number) > len(set(serving)):
        raise ConfigError(
            f"strategy '{config.strategy}' asks more experts than serve, which are {len(set(serving))}; "
            f"use 'full' for all of them, or at most 'top-{len(set(serving))}'"
        )
    if config.rest == "start" and ensemble.weak is None:
        raise ConfigError("sample.rest 'start' needs against = 'start', whose network it asks")
    if config.untold and ensemble.weak is not None and (ensemble.kind == "none" or config.rest == "start"):
        raise ConfigError("untold is of a start that could be told more, and that stands for nobody else")
    if config.entry not in ("auto", 1) and ensemble.entry is None:
        raise ConfigError(
            "sample.entry needs two moments of every expert's samples, told nothing or a class; train them "
            "with expert.entry = true, or leave it out"
        )
    if ensemble.maps and config.guidance != 1:
        raise ConfigError("a few-step student cannot be guided afterwards; bake it in: student.guidance")


def _labels(wanted: Sequence[int] | None, classes: int) -> tuple[int, ...] | None:
    """Classes in turn; all of them by default."""
    if not classes:
        return None
    wanted = range(classes) if wanted is None else wanted
    if not wanted or min(wanted) < 0 or max(wanted) >= classes:
        raise ConfigError(f"classes are numbered 0 to {classes - 1}, not {list(wanted)}")
    return tuple(wanted)


def settings(defaults: SampleConfig, **changes: Any) -> SampleConfig:
    """The settings of one request: the recipe's, with what was said explicitly."""
    overrides = {key: value for key, value in changes.items() if value is not None}
    unknown = overrides.keys() - SampleConfig.model_fields.keys()
    if unknown:
        first = min(unknown)
        near = did_you_mean(first, SampleConfig.model_fields)
        raise ConfigError(f"unknown sampling setting {first}; {near}see [sample] in docs/reference.md")
    try:
        return SampleConfig.model_validate({**defaults.model_dump(), **overrides})
    except ValidationError as error:
        raise ConfigError(_first_problem(error)) from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    if problem["loc"] == ("strategy",):
        near = did_you_mean(problem["input"], NAMED[STRATEGY])
        return f"unknown strategy {problem['input']!r}; {near}use {STRATEGIES}"
    return explain(error, SampleConfig)
