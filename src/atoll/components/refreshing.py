"""The learnt router takes in parts that were added: it learns them from samples that they draw.

Of a run's own clusters it reads the samples where they are here, and what their experts draw where not.
Data of others is not needed, and nothing but the router is trained.
"""

import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atoll.components import calibrating
from atoll.config import settings_digest
from atoll.data.store import Reader
from atoll.errors import ConfigError
from atoll.flow import objectives
from atoll.models import checkpoint
from atoll.models.prototypes import Prototypes
from atoll.runs import Run, Stage, digest
from atoll.runs.components import FOLDER, Members, Refreshed, write_members
from atoll.runs.locks import alone
from atoll.runs.records import DrawnContents, RouterContents
from atoll.sampling import grown
from atoll.train import drawn, jobs, loop
from atoll.train.ranks import Ranks

SAMPLES = 1000
"""Samples that a part draws, if it was trained on as many."""
HEAD = ("head.weight", "head.bias")
"""Of a router: one row for each part."""


def refresh(
    run: Run, samples: int = SAMPLES, progress: Callable[[str, int, int], None] | None = None
) -> Refreshed:
    """Train a router that tells all parts apart that serve now; whoever is interrupted goes on."""
    if samples < 1:
        raise ConfigError(f"a part draws at least one sample, not {samples}")
    with alone(run.path / FOLDER, "changed"):
        members, own = run.members, run.config.partition.clusters
        numbers = tuple(members.serving(own))
        if not members.present:
            raise ConfigError(f"nothing was added to {run.path}; its router knows all parts there are")
        made_from = _made_from(run, numbers, samples)
        stage = run.refreshed(f"router-{digest(made_from)[:12]}")
        sources = _sources(run, numbers, samples, progress)
        jobs.trained(
            stage, made_from, lambda ranks: _task(run, stage, sources, numbers, ranks), RouterContents
        )
        refreshed = Refreshed(knows=numbers, folder=stage.path.name, digest=stage.digest)
        # Nothing is left between known parts and others that a temperature would be for
        write_members(run.path, members.model_copy(update={"router": refreshed, "betas": (1.0,)}))
        tidy(run)
    run.event("router refreshed", knows=list(numbers), digest=refreshed.digest)
    return refreshed


def undone(run: Run, members: Members) -> Members:
    """The same parts without a refreshed router: the recipe's own and prototypes tell them apart again."""
    members = members.model_copy(update={"router": None})
    if not members.present:
        return members.model_copy(update={"betas": (1.0,)})
    return members.model_copy(update={"betas": calibrating.inverse_temperatures(run, members)})


def tidy(run: Run) -> None:
    """Throw away routers that nobody asks, and what parts drew for them."""
    router = run.members.router
    kept = set() if router is None else {router.folder}
    for path in (run.path / FOLDER).glob("*"):
        if path.is_dir() and path.name.startswith(("router-", "drawn-")) and path.name not in kept:
            shutil.rmtree(path)


def _made_from(run: Run, numbers: Sequence[int], samples: int) -> dict[str, Any]:
    return {
        "seed": run.config.seed,
        "samples": samples,
        "parts": {str(number): run.parts[number].digest for number in numbers},
        "clusters": {str(k): run.cluster(k).digest for k in numbers if _is_here(run, k)},
        "router": run.router.digest if run.router.done else None,
        "settings": digest(run.config.router.model_dump(mode="json")),
        "sample": settings_digest(run.config.sample, ("steps", "solver", "shift", "prompts")),
    }


def _is_here(run: Run, number: int) -> bool:
    """Whether the samples of a part are on this machine."""
    return number < run.config.partition.clusters and run.cluster(number).here


def _sources(
    run: Run, numbers: Sequence[int], samples: int, progress: Callable[[str, int, int], None] | None
) -> list[Stage]:
    """Samples of each part: its cluster, or what it draws."""
    shares, stages = grown.shares(run), list[Stage]()
    for place, number in enumerate(numbers):
        if progress is not None:
            progress("samples of parts", place, len(numbers))
        stages.append(run.cluster(number) if _is_here(run, number) else _drawn(run, number, samples, shares))
    return stages


def _drawn(run: Run, number: int, samples: int, shares: grown.Shares) -> Stage[DrawnContents]:
    """What a part draws, no more than it was trained on."""
    part = run.parts[number]
    made_from = {"rows": min(samples, max(1, part.contents.rows)), "part": part.digest}
    stage = Stage(run.path / FOLDER / f"drawn-{number:02d}-{digest(made_from)[:12]}", DrawnContents)
    return drawn.draw_from(run, number, part, stage, made_from, shares)


def _task(
    run: Run, stage: Stage, sources: Sequence[Stage], numbers: Sequence[int], ranks: Ranks
) -> tuple[loop.Task, checkpoint.Blueprint]:
    """The router as the recipe has it, with one answer for each part, from where the learnt one is."""
    config, seed, name = run.config.router, run.config.seed, "router-refreshed"
    times = _times(sources)
    reader = Reader(
        [stage for stage, n in zip(sources, times, strict=True) for _ in range(n)], config.batch, seed
    )
    blueprint = jobs.blueprint_of(run, config, reader).model_copy(update={"clusters": len(numbers)})
    if config.prototypes:
        model, blueprint = jobs.with_prototypes(blueprint, _known(run, numbers), seed, name)
    else:
        model = jobs.initial(blueprint, seed, name)
    _take_over(model, run, numbers)
    task = loop.Task(
        name=name,
        model=model,
        loss=jobs.router_loss(blueprint, numbers, _oversampling(run, sources, times, numbers)),
        reader=reader,
        config=config,
        seed=seed,
        dropout=run.config.condition.dropout if blueprint.condition != "none" else 0.0,
        stage=stage,
        ranks=ranks,
    )
    return task, blueprint


def _known(run: Run, numbers: Sequence[int]) -> Prototypes:
    """What prototypes say of all parts, each for itself, at temperatures that were found for that."""
    calibrating.own_rows(run)
    members, priors = run.members, grown.shares(run).priors
    rows = [grown.part_rows(run, number) for number in numbers]
    module = Prototypes(rows, range(len(numbers)), [priors[number] for number in numbers])
    return module.calibrated(calibrating.inverse_temperatures(run, members, learnt=False))


def _times(sources: Sequence[Stage]) -> list[int]:
    """How often an epoch has each part's samples: a few hundred among many thousands would not be learnt."""
    rows = [stage.contents.rows for stage in sources]
    return [max(1, round(statistics.median(rows) / count)) for count in rows]


def _oversampling(run: Run, sources: Sequence[Stage], times: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """How much more of each part is read than there is of it."""
    rows = [float(stage.contents.rows * n) for stage, n in zip(sources, times, strict=True)]
    read = torch.tensor(rows, dtype=torch.float64)
    priors = grown.shares(run).priors
    shares = torch.tensor([priors[number] for number in numbers], dtype=torch.float64)
    return objectives.oversampling(read, shares).float()


def _take_over(model: nn.Module, run: Run, numbers: Sequence[int]) -> None:
    """Begin with what the recipe's router has learnt, if there is one, and nothing known of new parts."""
    if not run.router.done:
        return
    learnt = checkpoint.read_tensors(run.router.verify(checkpoint.WEIGHTS))
    state = model.state_dict()
    known = [place for place, number in enumerate(numbers) if number < run.config.partition.clusters]
    for name, value in learnt.items():
        if name in HEAD:
            state[name][known] = value[[numbers[place] for place in known]].to(state[name].dtype)
        elif not name.startswith("prototypes.") and name in state and state[name].shape == value.shape:
            state[name].copy_(value)
    model.load_state_dict(state)
