"""The student that needs few steps: a flow map, learnt in lessons, each a stage that starts from the last.

By MeanFlow: first the average velocities along the teacher's own trajectories (arXiv 2509.24526), then those
that its velocity at noisy samples demands (arXiv 2512.13006). Or by halving the number of steps again and
again (arXiv 2202.00512).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atoll import devices
from atoll.config import FewStepConfig
from atoll.data.store import Batch, Reader
from atoll.errors import ConfigError
from atoll.flow import draws, maps, path, solver
from atoll.models import checkpoint, conditions
from atoll.runs import Run, Stage, inputs
from atoll.runs.records import FewStepContents
from atoll.sampling import building
from atoll.train import jobs, loop, student
from atoll.train.moving import move, on_cpu
from atoll.train.ranks import Ranks
from atoll.train.teaching import Lesson, Teachers

NAME = "few-step"
PAIRS_OF_A_TRAJECTORY = 8
"""Pairs of points that are learnt of each trajectory, which costs as many teacher passes as it has steps."""
WALKS, WALKED = (1, 2, 4, 8), 0.75
"""The numbers of steps that students are asked for, and the share of pairs that are steps of such a walk."""

BuildLoss = Callable[[checkpoint.Blueprint, Stage | None], loop.Loss]
"""The loss of a lesson, given the lesson before."""


@dataclass(frozen=True)
class Course:
    """One lesson: where it is kept, how long it takes, and what is learnt."""

    stage: Stage
    config: FewStepConfig
    loss: BuildLoss
    pairs: float


def few_step(run: Run) -> Stage:
    """Train the few-step student, lesson by lesson."""
    few = settings(run)
    clusters = inputs.lesson_clusters(run)
    before: Stage | None = None
    for course in _courses(run, few):
        made_from = _made_from(run, course)
        build = partial(_task, run, course, clusters, before)
        shift = few.sample_shift if few.method == "meanflow" else 1.0
        describe = partial(student.alone, run, course.stage, {"steps": few.sample_steps, "shift": shift})
        before = jobs.trained(course.stage, made_from, build, FewStepContents, measure=describe)
    return run.few_step


def settings(run: Run) -> FewStepConfig:
    """What the recipe says of its few-step student."""
    few = student.settings(run).few
    if few is None:
        raise ConfigError("the recipe has no [student.few]; add the section, even if nothing is in it")
    return few


def _courses(run: Run, few: FewStepConfig) -> list[Course]:
    """The lessons, the last of which gives the student."""
    last = run.few_step
    if few.method == "meanflow":
        courses = [Course(last, few, partial(_meanflow, run), few.pairs)] if few.steps else []
        if few.trajectories:
            warm = few.model_copy(update={"steps": few.trajectories})
            stage = run.stage(NAME, "trajectories") if few.steps else last
            courses.insert(0, Course(stage, warm, partial(_on_trajectories, run), 1.0))
        return courses
    counts = [
        few.grid >> level for level in range(1, few.grid.bit_length()) if few.grid >> level >= few.fewest
    ]
    return [
        Course(
            last if count == few.fewest else run.stage(NAME, f"steps-{count:03d}"),
            few,
            partial(_by_halves, run, count),
            0.0,
        )
        for count in counts
    ]


def _made_from(run: Run, course: Course) -> dict[str, Any]:
    """What a lesson is made from; those before the last are told apart by their names."""
    record = inputs.few_step_from(run)
    return record if course.stage.path == run.few_step.path else {**record, "lesson": course.stage.path.name}


def _task(
    run: Run, course: Course, clusters: list[Stage], before: Stage | None, ranks: Ranks
) -> tuple[loop.Task, checkpoint.Blueprint]:
    config = student.settings(run)
    reader = Reader(clusters, course.config.batch, run.config.seed)
    blueprint = jobs.blueprint_of(run, config, reader).model_copy(update={"steps": True})
    task = loop.Task(
        name=f"{NAME}/{course.stage.path.name}",
        model=_start(run, blueprint, course.config.init, before),
        loss=course.loss(blueprint, before),
        reader=reader,
        config=course.config,
        seed=run.config.seed,
        dropout=student.dropout(run, blueprint),
        stage=course.stage,
        ranks=ranks,
        run=run,
        pairs=course.pairs,
    )
    return task, blueprint


def _start(run: Run, blueprint: checkpoint.Blueprint, init: str, before: Stage | None) -> nn.Module:
    """The network of the lesson before; at first the dense student, or experts."""
    if before is None and init != "student":
        return student.first_network(run, blueprint, init, NAME)
    stage = run.student if before is None else before
    weights = student.expert_weights(run, stage, blueprint)
    return student.with_weights(jobs.initial(blueprint, run.config.seed, NAME), weights)


def _teachers(run: Run, who: str, blueprint: checkpoint.Blueprint) -> Teachers:
    """The dense student, whatever it was guided by already part of it, or experts."""
    if who != "student":
        assert who in ("label", "ensemble", "sampled"), who
        return student.teachers_of(run, who, blueprint)  # type: ignore[arg-type]
    return Teachers(building.lone(run.student, devices.best()), "ensemble")


def _loaded(stage: Stage) -> nn.Module:
    weights, config = stage.verify(checkpoint.WEIGHTS), stage.verify(checkpoint.CONFIG)
    return checkpoint.load(weights, config, devices.best())[0]


def _on_trajectories(run: Run, blueprint: checkpoint.Blueprint, before: Stage | None) -> loop.Loss:
    """Average velocities between points of trajectories, which must all be of one field.

    An expert drawn anew for each noise would couple one noise with several ends, and their mean is a blur.
    """
    few = settings(run)
    teachers = _teachers(run, "student" if student.settings(run).steps else "ensemble", blueprint)

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        device, size = drawn.t.device, len(drawn.t)
        trajectories = max(1, size // PAIRS_OF_A_TRAJECTORY)
        own, some = torch.arange(size, device=device) % trajectories, slice(0, trajectories)
        condition = conditions.take(jobs.told_of(blueprint, batch, drawn), some)
        clock = iter(solver.asked("dpm++", few.grid, few.sample_shift))

        def velocity(x_t: Tensor, t: Tensor) -> Tensor:
            here = torch.full((trajectories,), next(clock)), batch.cluster_on_cpu[some]
            return teachers.velocity(
                Lesson(x_t, t, condition, batch.cluster[some], drawn.uniform[some], *here)
            )

        with torch.no_grad():
            # of order two: the student can be no better than the trajectories that it is shown
            way = maps.trajectory(velocity, drawn.noise[some], few.grid, solver.DPM(), few.sample_shift)
        start, end = (move(place, device) for place in _ends(on_cpu(drawn), few.grid))
        t, r = (draws.shifted(place / few.grid, few.sample_shift) for place in (start, end))
        x_t, x_r = way[few.grid - start, own], way[few.grid - end, own]
        predicted = model(x_t, t, conditions.take(condition, own), r)
        losses = maps.distillation_loss(predicted.float(), maps.along(x_t, t, x_r, r))
        # Long steps have large losses, short ones are asked more often. Where each step ends is no matter of
        # chance, so that weights pull to no side.
        return maps.weighed(losses, 1.0 if few.power is None else few.power, few.floor)

    return loss


def _ends(drawn: draws.TrainingDraws, grid: int) -> tuple[Tensor, Tensor]:
    """Places on the grid where steps start and end: mostly as sampling takes them, the others anywhere."""
    start = (drawn.t * grid).ceil().clamp(min=1)
    end = torch.minimum((drawn.r * grid).floor(), start - 1)
    counts = [count for count in WALKS if grid % count == 0]
    t, r = maps.step_of_a_walk(drawn.t, (drawn.uniform / WALKED).clamp(max=1), counts)
    walked = drawn.uniform < WALKED
    return torch.where(walked, t * grid, start).round().long(), torch.where(
        walked, r * grid, end
    ).round().long()


def _meanflow(run: Run, blueprint: checkpoint.Blueprint, before: Stage | None) -> loop.Loss:
    """What the teacher's velocity demands of the average one."""
    few = settings(run)
    teachers = _teachers(run, few.teacher, blueprint)
    # Losses of single experts are mostly their scatter about the ensemble: weights would favour a side of it.
    one_field = few.teacher in ("student", "ensemble")
    power = few.power if few.power is not None else 1.0 if one_field else 0.0

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        lesson = student.lesson_of(blueprint, batch, drawn)
        target = teachers.velocity(lesson).float()
        with torch.no_grad():
            here = (on_cpu(drawn).r < on_cpu(drawn).t).nonzero()[:, 0]
            # Never none, so that all ranks ask the network equally often.
            rows = move(here if len(here) else torch.zeros(1, dtype=torch.long), drawn.t.device)
            condition = conditions.take(lesson.condition, rows)
            t, r, v = drawn.t[rows], drawn.r[rows], target[rows]
            slope = maps.slope(
                lambda x, time, end: model(x, time, condition, end).float(),
                lesson.x_t[rows],
                t,
                r,
                v,
                few.delta,
            )
            target[rows] = maps.meanflow_target(v, slope, t, r)
        predicted = model(lesson.x_t, drawn.t, lesson.condition, drawn.r)
        return maps.weighed(maps.distillation_loss(predicted.float(), target), power, few.floor)

    return loss


def _by_halves(run: Run, count: int, blueprint: checkpoint.Blueprint, before: Stage | None) -> loop.Loss:
    """One step for two of the lesson before; half of the samples keep what that one knows already."""
    few = settings(run)
    teachers = _teachers(run, few.teacher, blueprint) if before is None else None
    network = None if before is None else _loaded(before)
    older = [few.grid >> level for level in range(few.grid.bit_length()) if few.grid >> level > count]

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        here, device = on_cpu(drawn), drawn.t.device
        kept = ((2 * here.uniform - 1) * len(older)).long() + 1
        choice = torch.where(here.uniform < 0.5, 0, kept)
        steps = torch.tensor([count, *older])[choice]
        index = torch.minimum((here.t * steps).long(), steps - 1)
        t, r = move((index + 1) / steps, device), move(index / steps, device)
        x_t = path.point(batch.x_0, drawn.noise, t)
        condition = jobs.told_of(blueprint, batch, drawn)

        new, old = (move(some.nonzero()[:, 0], device) for some in (choice == 0, choice > 0))

        def known(rows: Tensor, x: Tensor, time: Tensor, end: Tensor) -> Tensor:
            """What the lesson before says; at first the teacher's velocity, as Euler's step takes it."""
            own = conditions.take(condition, rows)
            if network is not None:
                return network(x, time, own, end)
            assert teachers is not None
            return teachers.velocity(Lesson(x, time, own, batch.cluster[rows], drawn.uniform[rows]))

        with torch.no_grad():
            target = torch.empty_like(x_t)
            target[new] = maps.two_steps(partial(known, new), x_t[new], t[new], r[new])
            target[old] = known(old, x_t[old], t[old], r[old])
        predicted = model(x_t, t, condition, r)
        return maps.distillation_loss(predicted.float(), target.float())

    return loss
