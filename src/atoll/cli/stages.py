"""`atoll run` and one command per stage."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll import errors
from atoll.cli.options import AsJson, Overrides, Recipe, StartOver, app
from atoll.cli.output import bar, named, tell, tell_stage


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody writes it
    on: Annotated[str, typer.Option(help="Where jobs run: local, ray or slurm.")] = "local",
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Every stage that is not done yet, from raw samples to a page of pictures."""
    if on not in ENGINES:
        raise errors.ConfigError(f"--on {on}: jobs can run on {', '.join(ENGINES)}")
    with _opened(recipe, overrides, source=True) as opened:
        with _driving(opened):
            page, written = _run(opened, recipe, overrides, on, start_over, as_json)
        tell(
            as_json,
            {"run": str(opened.path), "report": str(page), **written},
            f"Open {page.resolve().as_uri()}",
        )


def _driving(opened: Any) -> contextlib.AbstractContextManager[None]:
    """Where the run lives in a store, others are to know that somebody drives it."""
    if not opened.config.launch.store:
        return contextlib.nullcontext()
    from atoll.launch import courier

    return courier.driving(opened)


def _run(
    opened: Any, recipe: Path, overrides: Sequence[str], on: str, start_over: bool, as_json: bool
) -> tuple[Path, dict[str, Any]]:
    remote = bool(opened.config.launch.store)
    _prepare(opened, recipe, overrides, on, start_over, as_json)
    if start_over and on != "local" and not remote:
        _forget(opened)  # once, and not again whenever an engine starts a job anew
    again = start_over and on == "local" and not remote
    jobs = _jobs(opened, recipe, overrides, again)
    if jobs:
        from atoll.launch.table import watching

        opened.event("training", jobs=[job.name for job in jobs], on=on)
        with watching(as_json) as watch:
            _engine(on)(jobs, opened, recipe, watch)
    students = _student_jobs(opened, recipe, overrides, again)
    if students:
        from atoll.launch.table import watching

        opened.event("distilling", jobs=[job.name for job in students])
        with watching(as_json) as watch:
            _engine(on)(students, opened, recipe, watch)
    from atoll.pages import report
    from atoll.sampling import sample

    if remote:
        from atoll.launch import courier

        mirror = courier.collect(opened)
    out = opened.path / "samples"
    with bar(as_json) as progress:
        written = sample.sample(opened, out, progress=named(progress, "samples"))
    page = report.write_report(opened, out)
    opened.event("finished", report=str(page))
    if remote:
        mirror.upload_folder(out)
        mirror.upload_folder(page.parent)
    return page, written


ENGINES = ("local", "ray", "slurm")


def _engine(on: str) -> Callable[..., None]:
    """What runs jobs: (jobs, run, recipe, watch)."""
    if on == "ray":
        from atoll.launch import on_ray

        return on_ray.run_jobs
    if on == "slurm":
        from atoll.launch import on_slurm

        return on_slurm.run_jobs
    from atoll.launch import local

    return lambda jobs, run, recipe, watch: local.run_jobs(jobs, run.config.launch, watch)


def _forget(opened: Any) -> None:
    """Throw everything trained away."""
    import shutil

    for name in ("experts", "router", "student", "few-step", "drawn"):
        shutil.rmtree(opened.path / name, ignore_errors=True)


def _prepare(
    opened: Any, recipe: Path, overrides: Sequence[str], on: str, start_over: bool, as_json: bool
) -> None:
    """Raw samples to clusters: here, on a cluster, or as the store has them."""
    from atoll import config
    from atoll.data import look

    store = opened.config.launch.store
    if start_over and store:
        from atoll.launch import courier

        courier.clear(opened)
        start_over = False
    for command in ("prepare", "partition"):
        if on == "ray":
            from atoll.launch import spread

            spread.spread(opened, command, start_over=start_over)
        if store:
            from atoll.launch import courier

            courier.carry(opened, courier.errand(opened, command), recipe, overrides)
        # What the store has is only looked at here: whether it was made from what the recipe says today.
        with bar(as_json) as progress:
            from atoll.data import encode, partition

            make = encode.prepare if command == "prepare" else partition.partition
            make(opened, start_over=start_over and on != "ray", progress=progress)
        # Now the samples are known for certain: what cannot work is told once, and not by every job.
        config.check(opened.config, look.known(opened))
    if store:
        courier.look(opened)


def _carried(
    opened: Any, recipe: Path, overrides: Sequence[str], start_over: bool, *command: str
) -> Any | None:
    """The stage that a command makes, if the run lives in a store; None if it lives here."""
    if not opened.config.launch.store:
        return None
    from atoll.launch import courier

    job = courier.errand(opened, *command)
    return courier.carry(opened, job, recipe, overrides, start_over=start_over)


def _jobs(opened: Any, recipe: Path, overrides: Sequence[str], start_over: bool) -> list[Any]:
    """The trainings that are not finished: the router first, since it takes longest, then the experts."""
    from atoll.launch.local import Job

    arguments = [str(recipe), *(part for text in overrides for part in ("--set", text))]
    arguments += ["--start-over"] if start_over else []
    clusters = opened.config.partition.clusters
    router = opened.config.router
    jobs = (
        []
        if clusters == 1 or (not start_over and opened.router.current(opened.router_inputs()))
        else [Job("router", ["router", *arguments], opened.router.path, router.steps, router.batch)]
    )
    for k in range(clusters):
        expert, stage = opened.config.expert_for(k), opened.expert(k)
        if start_over or not stage.current(opened.expert_inputs(k)):
            command = ["expert", str(k), *arguments]
            jobs.append(Job(f"expert {k}", command, stage.path, expert.steps, expert.batch))
    return jobs


def _student_jobs(opened: Any, recipe: Path, overrides: Sequence[str], start_over: bool) -> list[Any]:
    """The distillation, if the recipe asks for one; it comes after the experts."""
    from atoll.launch.local import Job

    config = opened.config.student
    if config is None:
        return []
    arguments = [str(recipe), *(part for text in overrides for part in ("--set", text))]
    arguments += ["--start-over"] if start_over else []
    few = config.few
    last = (config.steps, config.batch) if few is None else (few.steps or few.trajectories, few.batch)
    stage = opened.student if few is None else opened.few_step
    return [Job("student", ["student", *arguments], stage.path, *last)]


@app.command()
def prepare(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Raw samples to samples and features at rest."""
    with _opened(recipe, overrides, source=True) as opened:
        carried = _carried(opened, recipe, overrides, start_over, "prepare")
        with bar(as_json) as progress:
            from atoll.data import encode

            stage = encode.prepare(opened, start_over=start_over and not carried, progress=progress)
        tell_stage(as_json, stage)


@app.command()
def partition(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Samples to clusters: which sample belongs to which expert."""
    with _opened(recipe, overrides) as opened:
        carried = _carried(opened, recipe, overrides, start_over, "partition")
        with bar(as_json) as progress:
            from atoll.data import partition as room

            stage = room.partition(opened, start_over=start_over and not carried, progress=progress)
        tell_stage(as_json, stage)


@app.command()
def expert(
    index: Annotated[int, typer.Argument(metavar="K", help="Which expert; they are numbered from 0.")],
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train expert K on its cluster, alone."""
    with _opened(recipe, overrides) as opened:
        stage = _carried(opened, recipe, overrides, start_over, "expert", str(index))
        if stage is None:
            from atoll.train import jobs

            stage = jobs.expert(opened, index, start_over=start_over)
        tell_stage(as_json, stage)


@app.command()
def router(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Train the router."""
    with _opened(recipe, overrides) as opened:
        stage = _carried(opened, recipe, overrides, start_over, "router")
        if stage is None:
            from atoll.train import jobs

            stage = jobs.router(opened, start_over=start_over)
        tell_stage(as_json, stage)


@app.command()
def student(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    site: Annotated[
        int | None, typer.Option(metavar="K", help="Only site K's steps of the round that is due.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Only merge what the sites handed in.")] = False,
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Distil all experts into one model, and into one that needs few steps."""
    with _opened(recipe, overrides) as opened:
        carried = _carried(opened, recipe, overrides, start_over, "student")
        from atoll.train import distil, rounds

        if site is not None:
            stage = rounds.site(opened, site)
        elif merge:
            stage = rounds.merge(opened)
        else:  # what came from the store is only looked at: whether it was made from today's inputs
            stage = distil.distil(opened, start_over=start_over and not carried)[-1]
        tell_stage(as_json, stage)


def _opened(
    recipe: Path, overrides: Sequence[str], *, source: bool = False
) -> contextlib.AbstractContextManager[Any]:
    """The run of a recipe; what cannot work is refused before anything is written or started."""
    from atoll import config
    from atoll.data import look
    from atoll.runs import Run, runs_folder

    resolved = config.load(recipe, overrides)
    config.check(resolved, look.known(Run(runs_folder() / resolved.name, resolved), source=source))
    return Run.begun(resolved, recipe)
