"""One set of samples against the data: every number with its interval, and the floor beside it."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll.config import EvaluateConfig
from atoll.data.values import standardise
from atoll.errors import ConfigError
from atoll.evaluate import distances, diversity, features, occupancy, reference
from atoll.evaluate.agreement import ClipScore
from atoll.evaluate.distances import in_parts
from atoll.evaluate.features import Space, seen
from atoll.evaluate.intervals import Measured, bootstrap, mean_of_rows
from atoll.evaluate.reference import Real, as_seen
from atoll.runs import Run, evaluations
from atoll.sampling.sampler import Sampler
from atoll.sampling.samples import Samples
from atoll.sampling.tally import Progress

MANIFOLD = 10_000
"""At most so many rows make the manifold of precision and recall."""
NEAREST = 2000
"""At most so many samples are compared with all the data for copies."""


class Judge:
    """Real samples and their features, ready to judge any number of sets of samples."""

    def __init__(self, run: Run, config: EvaluateConfig, folder: Path | None = None) -> None:
        if not run.data.done:
            raise ConfigError(f"{run.data.path} is not there; evaluation compares with the run's own data")
        self.run, self.config = run, config
        self.folder = folder or evaluations.kept(run)
        self.real: Real = reference.draw(run, config.reference)
        self._made: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def spaces(self) -> list[Space]:
        """The features that are asked for."""
        names = self.config.features or features.default_names(self.real)
        return [features.open_space(name, self.real, self.folder) for name in names]

    @cached_property
    def x_0(self) -> Tensor:
        """The real samples as networks see them."""
        return standardise(self.real.stored, self.real.contents)

    def ready(self) -> None:
        """Compute what is shared by all: classifier and features of the data."""
        for space in self.spaces:
            _ = space.reference

    def judge(self, x_0: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        """All numbers of a set of samples; `labels` is the class that each was asked to be."""
        x_0 = x_0.cpu()
        return {
            "num": len(x_0),
            "features": {space.name: self._distances(space, x_0) for space in self.spaces},
            **self._groups(x_0, labels),
            "copies": self._copies(x_0),
        }

    def _distances(self, space: Space, x_0: Tensor) -> dict[str, Any]:
        rows, data = space.of(x_0), space.reference
        return {
            "frechet": self._frechet(rows, space).facts(),
            "kernel": _kernel(rows, data, self.config.bootstrap).facts(),
            **self._manifolds(rows, data),
            "floor": self._once(("floor", space.name, len(x_0)), lambda: self._floor(space, len(x_0))),
            "distance": space.distance_name,
            **space.about,
        }

    def _frechet(self, rows: Tensor, space: Space) -> Measured:
        to = self._once(("frechet", space.name), lambda: distances.Frechet(space.reference))
        return bootstrap(len(rows), lambda chosen: to(rows[chosen]), self.config.bootstrap)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is the same for every set of samples that is judged."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _manifolds(self, rows: Tensor, data: Tensor) -> dict[str, Any]:
        rows, data = rows[:MANIFOLD], data[: min(MANIFOLD, max(len(rows), 2))]
        near = self.config.neighbours
        coverage = {
            "precision": distances.covered(rows, data, near),
            "recall": distances.covered(data, rows, near),
        }
        return {name: mean_of_rows(each, self.config.bootstrap).facts() for name, each in coverage.items()}

    def _floor(self, space: Space, num: int) -> dict[str, float]:
        """The same distances of as many real samples, of one half of the data, to the other half."""
        half = len(space.reference) // 2
        left, right = space.reference[:half][:num], space.reference[half:]
        coverage = self._manifolds(left, right)
        return {
            "frechet": distances.frechet(left, right),
            "kernel": float(distances.kernel_blocks(left, right).mean()),
            "num": len(left),
            **{name: each["value"] for name, each in coverage.items()},
        }

    def _groups(self, x_0: Tensor, labels: Tensor | None) -> dict[str, Any]:
        """Shares of clusters and classes among samples and data, and beside them those of real samples."""
        groups: dict[str, Any] = {}
        num = len(x_0)
        clusters = occupancy.clusters_of(self.run, x_0, self.real.contents)
        sizes = torch.tensor(self.run.partition.contents.sizes)
        if clusters is not None and len(sizes) > 1:
            groups["clusters"] = occupancy.shares(clusters, sizes, self.config.bootstrap)
            groups["clusters"]["floor"] = self._once(("clusters", num), lambda: self._apart(num, sizes))
        if any(space.name == features.CLASSIFIER for space in self.spaces):
            predicted = features.predict(self.real, self.folder, x_0)
            # The data as the classifier sees them too, so that its own mistakes do not count.
            of_data = self._once(("classes",), self._classes_of_data)
            counts = torch.bincount(of_data, minlength=len(self.real.contents.class_names))
            groups["classes"] = occupancy.shares(predicted, counts, self.config.bootstrap)
            groups["classes"]["floor"] = occupancy.apart(of_data[:num], counts)
            if labels is not None:
                groups["as_asked"] = mean_of_rows(predicted == labels.cpu(), self.config.bootstrap).facts()
        return groups

    def _apart(self, num: int, sizes: Tensor) -> float:
        """How far the clusters' shares among as many real samples are from those among all."""
        own = occupancy.clusters_of(self.run, self.x_0[:num], self.real.contents)
        assert own is not None
        return occupancy.apart(own, sizes)

    def _classes_of_data(self) -> Tensor:
        return features.predict(self.real, self.folder, self.x_0[:MANIFOLD])

    def _copies(self, x_0: Tensor) -> dict[str, Any]:
        """How many samples are copies of training samples, and how many of the data of each other."""
        copied = distances.copies(x_0[:NEAREST], self.x_0)
        return {**mean_of_rows(copied, self.config.bootstrap).facts(), "floor": self._copied}

    @cached_property
    def _copied(self) -> float:
        return float(distances.copies(self.x_0[:NEAREST], self.x_0, own=True).float().mean())

    def looked_at(self, x_0: Tensor, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """What only pictures have: how different those of one prompt are, and whether they show it."""
        facts: dict[str, Any] = {}
        if self.config.lpips is None and (self.config.clip is None or "prompt" not in conditions):
            return facts
        contents = self.real.contents
        values = torch.cat([as_seen(part, contents).cpu() for part in in_parts(x_0, features.BATCH)])
        if self._lpips is not None:
            groups = conditions.get("label") or conditions.get("prompt") or [0] * len(values)
            real = torch.cat(
                [seen(part, contents) for part in in_parts(self.real.stored[: len(values)], 500)]
            )
            facts["diversity"] = _facts(
                diversity.diversity(self._lpips, values, groups, self.config.bootstrap)
            )
            # What was asked of the samples is what these real ones are.
            floor = diversity.diversity(self._lpips, real, groups[: len(real)], self.config.bootstrap)
            facts["diversity_of_data"] = _facts(floor)
        if self._clip is not None and "prompt" in conditions:
            scores = self._clip(values, conditions["prompt"])
            facts["clip_score"] = mean_of_rows(scores, self.config.bootstrap).facts()
        return facts

    @cached_property
    def _lpips(self) -> diversity.Lpips | None:
        return None if self.config.lpips is None else diversity.open_lpips(self.config.lpips)

    @cached_property
    def _clip(self) -> ClipScore | None:
        return None if self.config.clip is None else ClipScore(self.config.clip)

    def conditions(self, num: int) -> dict[str, Any]:
        """What samples are asked to be: what as many real samples are, so that nothing differs by that."""
        kind = self.run.config.condition.kind
        rows = [index % len(self.real) for index in range(num)]
        if kind == "class":
            classes = self.real.classes
            assert classes is not None
            return {"label": [max(0, int(classes[row])) for row in rows]}
        if kind == "text":
            return {"prompt": [self.real.captions[row] or "" for row in rows]}
        return {}


def _facts(measured: Measured | None) -> dict[str, Any] | None:
    return None if measured is None else measured.facts()


def _kernel(rows: Tensor, data: Tensor, resamples: int) -> Measured:
    blocks = distances.kernel_blocks(rows, data)
    return mean_of_rows(blocks, resamples)._replace(num=len(rows))


def sample_and_judge(
    sampler: Sampler,
    judge: Judge,
    num: int,
    settings: Mapping[str, Any],
    progress: Progress | None = None,
) -> tuple[dict[str, Any], Samples]:
    """Sample as `settings` say and judge: one row of a table, and the samples."""
    conditions = judge.conditions(num)
    since = time.monotonic()
    drawn = sampler.trace(num, progress=progress, **conditions, **settings)
    sampled = time.monotonic() - since
    labels = torch.tensor(conditions["label"]) if "label" in conditions else None
    row = judge.judge(drawn.x_0, labels) | judge.looked_at(drawn.x_0, conditions)
    active = (drawn.weights > 0).sum(2).double().mean()
    row |= {
        "strategy": drawn.strategy,
        "experts_per_step": float(active),
        "switches": mean_of_rows(drawn.switches, judge.config.bootstrap).facts(),
        "disagreement": mean_of_rows(drawn.disagreement.mean(0), judge.config.bootstrap).facts(),
        "makers": torch.bincount(drawn.expert.cpu(), minlength=drawn.weights.shape[2]).tolist(),
        "seconds": {"sample": sampled, "judge": time.monotonic() - since - sampled},
    }
    return row, drawn


GROUPS = ("clusters", "classes")
EXTRAS = {
    "as_asked": "of the class that was asked for",
    "disagreement": "disagreement of active experts",
    "diversity": "LPIPS within a prompt",
    "diversity_of_data": "the same of the data",
    "clip_score": "CLIP score",
}


def table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Rows of numbers for a person."""
    lines = []
    for name, row in rows:
        for space in row["features"].values():
            floor = space["floor"]
            lines += [
                f"{name}",
                f"  {space['distance']:34} {_said(space['frechet'])}   floor {floor['frechet']:.3g}",
                f"  {'kernel distance':34} {_said(space['kernel'])}   floor {floor['kernel']:.3g}",
                f"  {'precision':34} {_said(space['precision'])}   floor {floor['precision']:.3g}",
                f"  {'recall':34} {_said(space['recall'])}   floor {floor['recall']:.3g}",
            ]
        for key in GROUPS:
            if key in row:
                floor = row[key]["floor"]
                what = f"divergence of {key} (bits)"
                lines.append(f"  {what:34} {_said(row[key]['divergence'])}   floor {floor:.3g}")
        copies = row["copies"]
        lines.append(f"  {'copies of training samples':34} {_said(copies)}   floor {copies['floor']:.3g}")
        extras = {title: row[key] for key, title in EXTRAS.items() if row.get(key) is not None}
        lines += [f"  {title:34} {_said(number)}" for title, number in extras.items()]
        if "monolith" in row:
            alike = row["monolith"]
            strangers = f"strangers {alike['strangers']['value']:.3g}"
            lines.append(f"  {'likeness to the monolith':34} {_said(alike['matched'])}   {strangers}")
    return "\n".join(lines)


def _said(number: Mapping[str, Any]) -> str:
    if number["low"] is None:
        return f"{number['value']:.4g}"
    return f"{number['value']:.4g} ({number['low']:.4g} to {number['high']:.4g}, n = {number['num']:,})"
