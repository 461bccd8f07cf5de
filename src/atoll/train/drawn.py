"""Samples that an expert draws in place of its cluster's, for those who may not share data."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import devices
from atoll.data import text as texts
from atoll.data.store import cluster_schema, to_values, write_cluster_file
from atoll.errors import ConfigError
from atoll.flow import draws, mixture
from atoll.models.conditions import TextCondition
from atoll.runs import Run, Stage, inputs, replacing
from atoll.runs.records import DrawnContents, PartitionContents, SharedContents, TextFormat
from atoll.sampling import building, grown
from atoll.sampling.sampler import Sampler

PART = 2048
"""Samples of one file, which is what an interruption may cost."""


def draw(run: Run, index: int) -> Stage[DrawnContents]:
    """As many samples of one expert as its cluster's share, at rest like a cluster's."""
    made_from, contents = inputs.drawn_from(run, index), run.partition.contents
    shares = grown.Shares(
        list(contents.priors), None if contents.labels is None else [*map(list, contents.labels)]
    )
    return draw_from(run, index, run.expert(index), run.drawn(index), made_from, shares)


def draw_from(
    run: Run,
    index: int,
    expert: Stage,
    stage: Stage[DrawnContents],
    made_from: dict[str, Any],
    shares: grown.Shares,
) -> Stage[DrawnContents]:
    """`made_from["rows"]` samples of the part of this number, which has its share of all samples."""
    if not stage.begin(made_from):
        return stage
    rows = made_from["rows"]
    sampler = Sampler(building.lone(expert, devices.best()))
    files = []
    for number, first in enumerate(range(0, rows, PART)):
        size = min(PART, rows - first)
        path = stage.path / f"part-{number:05d}.parquet"
        if not path.is_file():
            counts = None if shares.counts is None else shares.counts[index]
            _write_part(run, sampler, index, counts, range(first, first + size), path)
        files.append((path.name, size))
    contents = _contents(run.partition.contents, index, shares.priors, files)
    stage.finish(made_from, [name for name, _ in files], contents)
    return stage


def _contents(
    about: PartitionContents, index: int, priors: Sequence[float], files: list[tuple[str, int]]
) -> DrawnContents:
    """What is said of samples that stand for those of part `index`."""
    rows = sum(size for _, size in files)
    own = ("rows", "clusters", "priors")
    shared = {key: getattr(about, key) for key in SharedContents.model_fields if key not in own}
    return DrawnContents(
        **shared,
        clusters=len(priors),
        priors=tuple(priors),
        cluster=index,
        rows=rows,
        prior=priors[index],
        bytes=rows * int(np.prod(about.shape)) * np.dtype(about.dtype).itemsize,
        parts=tuple(files),
    )


def _write_part(
    run: Run, sampler: Sampler, index: int, counts: Sequence[int] | None, numbers: range, path: Path
) -> None:
    """Draw some samples, each a function of (seed, expert, number), and lay them to rest."""
    about, settings, ensemble = run.partition.contents, run.config.sample, sampler.ensemble
    seed = draws.generator(run.config.seed, f"drawn/{index}", numbers[0]).initial_seed() % 2**62
    label = _labels(run, index, counts, numbers) if ensemble.classes else None
    prompts = (
        [settings.prompts[n % len(settings.prompts)] for n in numbers]
        if ensemble.text and settings.prompts
        else None
    )
    states = None if prompts is None or about.text is None else _states(about.text, prompts)
    if ensemble.text and states is None:
        raise ConfigError("samples drawn from experts with captions need prompts: set sample.prompts")
    condition = None if states is None else TextCondition(states.tokens, states.mask, states.pooled)
    x_0 = sampler.sample(
        len(numbers),
        label=label,
        text=condition,
        seed=seed,
        steps=settings.steps,
        solver=settings.solver,
        shift=settings.shift,
        batch=settings.batch,
        strategy="ancestral",
    )
    _write(path, _stored(x_0, about), label, prompts, states, about)


def _labels(run: Run, index: int, counts: Sequence[int] | None, numbers: range) -> list[int]:
    """Classes as often as the cluster has them."""
    if counts is None:
        raise ConfigError(
            "the partition does not say which classes a cluster has; use student.data 'clusters'"
        )
    share = torch.tensor(counts, dtype=torch.float64)
    uniform = draws.sample_uniform(run.config.seed, numbers, f"drawn/{index}/class")
    return mixture.draw((share / share.sum()).expand(len(numbers), -1), uniform).tolist()


def _states(about: TextFormat, prompts: list[str]) -> texts.TextStates:
    return texts.TextEncoder(about.model, about.tokens, "auto")(prompts)


def _stored(x_0: Tensor, about: PartitionContents) -> NDArray[Any]:
    """Samples as they are stored: whole numbers of pixels, or floats."""
    values = to_values(x_0, about).cpu()
    dtype = np.dtype(about.dtype)
    if dtype.kind == "u":
        values = values.round().clamp(0, np.iinfo(dtype).max)
    return values.numpy().astype(dtype)


def _write(
    path: Path,
    stored: NDArray[Any],
    label: list[int] | None,
    prompts: list[str] | None,
    states: texts.TextStates | None,
    about: PartitionContents,
) -> None:
    raw = [sample.tobytes() for sample in stored]
    columns: dict[str, Any] = {
        "id": [hashlib.sha256(f"{path.name}/{row}/".encode() + one).digest() for row, one in enumerate(raw)],
        "sample": raw,
        "label": label if label is not None else [None] * len(raw),
        "caption": prompts if prompts is not None else [None] * len(raw),
    }
    if states is not None:
        rest = texts.to_rest(states)
        columns |= {"tokens": rest.tokens, "pooled": rest.pooled}
    schema = cluster_schema(len(raw[0]), with_text=states is not None)
    schema = schema.remove(schema.get_field_index("sha256"))
    with replacing(path) as beside:
        write_cluster_file(beside, pa.table(columns, schema=schema), about.group)
