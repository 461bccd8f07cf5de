"""One command per room; heavy imports inside the command."""

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll import errors

app = typer.Typer(
    name="atoll",
    help="Train one generative model on many islands of compute that never talk to each other.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Recipe = Annotated[Path, typer.Argument(help="A TOML file that says what the run is; see recipes/.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the recipe.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
StartOver = Annotated[
    bool, typer.Option("--start-over", help="Throw away what the stage has and begin again.")
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of one expert.")
]


def main() -> None:
    """Run the command line: mistakes in one line and exit code 1, a saved stop with exit code 75."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    # Only our own news: libraries announce at this level how they were loaded.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("atoll").setLevel(logging.INFO)
    try:
        app(args=arguments, prog_name="atoll", standalone_mode=True)
    except errors.AtollError as error:
        if str(error):  # else a process of ours has said it
            _complain(str(error), debug)
        sys.exit(errors.EXIT_USER_ERROR)
    except errors.Interrupted as stop:
        print(f"atoll: {stop}", file=sys.stderr)
        sys.exit(errors.EXIT_RUN_AGAIN)
    except OSError as error:
        _complain(f"{error.filename or 'the disk'}: {error.strerror or error}", debug)
        sys.exit(errors.EXIT_USER_ERROR)


def _complain(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"atoll: {' '.join(message.split())}", file=sys.stderr)


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
    with _opened(recipe, overrides) as opened:
        with _driving(opened):
            page, written = _run(opened, recipe, overrides, on, start_over, as_json)
        _tell(
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
    from atoll import report, sample

    if remote:
        from atoll.launch import courier

        mirror = courier.collect(opened)
    out = opened.path / "samples"
    with _bar(as_json) as progress:
        written = sample.sample(opened, out, progress=_named(progress, "sample"))
    page = report.write_report(opened, out)
    opened.event("finished", report=str(page))
    if remote:
        mirror.hand_in_folder(out)
        mirror.hand_in_folder(page.parent)
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
        with _bar(as_json) as progress:
            from atoll.data import encode, partition

            make = encode.prepare if command == "prepare" else partition.partition
            make(opened, start_over=start_over and on != "ray", progress=progress)
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
def show(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """The run as the program understands it, and nothing else."""
    from atoll import config

    resolved = config.load(recipe, overrides).model_dump(mode="json")
    print(json.dumps(resolved, indent=None if as_json else 2))


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """FLOPs, memory, bytes and hours of a run, before any are spent."""
    from atoll import config
    from atoll import plan as room
    from atoll.runs import Run, runs_folder

    resolved = config.load(recipe, overrides)
    data = Run(runs_folder() / resolved.name, resolved).data
    found = room.plan(resolved, data.contents if data.done else None)
    _tell(as_json, found, room.sentences(found))


@app.command()
def prepare(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Raw samples to samples and features at rest."""
    with _opened(recipe, overrides) as opened:
        carried = _carried(opened, recipe, overrides, start_over, "prepare")
        with _bar(as_json) as progress:
            from atoll.data import encode

            stage = encode.prepare(opened, start_over=start_over and not carried, progress=progress)
        _tell_stage(as_json, stage)


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
        with _bar(as_json) as progress:
            from atoll.data import partition as room

            stage = room.partition(opened, start_over=start_over and not carried, progress=progress)
        _tell_stage(as_json, stage)


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
        _tell_stage(as_json, stage)


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
        _tell_stage(as_json, stage)


@app.command()
def student(
    recipe: Recipe,
    overrides: Overrides = [],  # noqa: B006
    island: Annotated[
        int | None, typer.Option(metavar="K", help="Only island K's steps of the round that is due.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Only merge what the islands handed in.")] = False,
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """Distil all experts into one model, and into one that needs few steps."""
    with _opened(recipe, overrides) as opened:
        carried = _carried(opened, recipe, overrides, start_over, "student")
        from atoll.train import distil, rounds

        if island is not None:
            stage = rounds.island(opened, island)
        elif merge:
            stage = rounds.merge(opened)
        else:  # what came from the store is only looked at: whether it was made from today's inputs
            stage = distil.distil(opened, start_over=start_over and not carried)[-1]
        _tell_stage(as_json, stage)


@app.command()
def sample(
    run_folder: RunFolder,
    num: Annotated[int | None, typer.Option(help="How many.")] = None,
    strategy: Annotated[str | None, typer.Option(help="full, top-K, ancestral or auto.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps from noise to data.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance; 1 is none.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Class of the samples, number or name; several are taken in turn."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What the samples show, in words; several are taken in turn.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sample i depends on this and on i alone.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; by default the run's samples/.")
    ] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of [sample], as resident=1."),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Samples from a finished run, or from an exported one."""
    from atoll import config
    from atoll import sample as room

    settings = {
        **config.assignments(overrides),
        **{"num": num, "strategy": strategy, "steps": steps, "guidance": guidance, "seed": seed},
    }
    out = out or room.default_out(run_folder)
    with _bar(as_json) as progress:
        bar = _named(progress, "sample")
        if room.is_expert(run_folder):
            written = room.sample_expert(run_folder, out, label=label, progress=bar, **settings)
        else:
            opened = room.open_run(run_folder)
            written = room.sample(opened, out, label=label, prompt=prompt, progress=bar, **settings)
    said = room.strategy_sentence(written)
    _tell(as_json, written, f"{said}\nWrote {written.get('grid', written['samples'])}")


@app.command()
def evaluate(
    run_folder: RunFolder,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of [evaluate] or [sample]."),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Distances to the data, occupancy, copies, router and experts of a finished run, with intervals."""
    from atoll.evaluate import evaluation, measure
    from atoll.runs import Run

    opened = Run.open(run_folder).changed(overrides)
    with _bar(as_json) as progress:
        found = evaluation.evaluate(opened, progress=_named(progress, "sample"))
    if (opened.path / "samples" / "samples.json").is_file():
        from atoll import report

        report.write_report(Run.open(run_folder), opened.path / "samples")
    said = [measure.table(list(found["strategies"].items()))]
    said += [evaluation.routing_table(found["routing"])] if "routing" in found else []
    _tell(as_json, found, "\n".join([*said, f"Wrote {opened.path / 'evaluation' / evaluation.FILE}"]))


@app.command()
def study(
    path: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="A TOML file with a recipe and axes; see recipes/studies/."),
    ],
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study, or of all its recipes."),
    ] = [],  # noqa: B006
    only: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Many runs, one table: every combination of the axes, with the monolith at equal FLOPs beside it."""
    from atoll.launch import local
    from atoll.launch.table import watching
    from atoll.study import cells as room
    from atoll.study import design, results

    shop = room.Workshop(design.load(path, overrides))
    if only is not None:
        room.work(shop, shop.cells(), only)
        return
    with _bar(as_json) as progress:
        cells = shop.cells(progress)
        jobs = room.trainings(shop, cells)
        if jobs:
            room.prepare(shop, cells, progress)
    try:
        for wave in (room.starts(shop, cells) if jobs else [], jobs):
            if wave:
                with watching(as_json) as watch:
                    local.run_jobs(wave, shop.study.base_run.launch, watch)
    finally:
        written = results.write(shop, cells)
    page = f"\nOpen {Path(written['report']).resolve().as_uri()}" if "report" in written else ""
    _tell(as_json, written, f"Wrote {written['table']}{page}")


@app.command()
def export(
    run_folder: RunFolder,
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="A new folder, or hub:owner/name to publish it on the Hub.")
    ],
    licence: Annotated[
        str, typer.Option("--license", help="Licence of the weights, as the Hub writes it: mit, cc-by-4.0, …")
    ] = "unknown",
    as_json: AsJson = False,
) -> None:
    """A finished run as a diffusers pipeline with a model card."""
    from atoll import export as room
    from atoll.runs import Run

    answer = room.export(Run.open(run_folder), target, licence)
    _tell(as_json, answer, f"Exported to {answer['address']}")


@app.command("import")
def import_checkpoint(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A .safetensors file, a folder, or hub:owner/name.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; by default imported/<name>.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="A TOML file with our names and theirs, for unknown layouts.")
    ] = None,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Say what the checkpoint does not.")
    ] = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """A foreign checkpoint to an expert that samples at once and joins an ensemble at once."""
    from atoll.train import imported

    name = checkpoint.removeprefix("hub:").rstrip("/").rsplit("/", 1)[-1].removesuffix(".safetensors")
    folder = out or Path("imported") / name
    stage = imported.bring_in(checkpoint, folder, mapping, overrides, start_over=start_over)
    sentence = f"To start experts from it, write in a recipe:\n\n{stage.contents['recipe']}\n\nWrote {folder}"
    _tell(as_json, {"folder": str(folder), **stage.contents}, sentence)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine has, and what it lacks."""
    from atoll.doctor import examine

    findings = examine()
    width = max(len(name) for name in findings)
    _tell(as_json, findings, "\n".join(f"{name:{width}}  {value}" for name, value in findings.items()))


def _opened(recipe: Path, overrides: Sequence[str]) -> contextlib.AbstractContextManager[Any]:
    from atoll import config
    from atoll.runs import Run

    return Run.begun(config.load(recipe, overrides), recipe)


def _tell(as_json: bool, facts: dict[str, Any], sentence: str) -> None:
    print(json.dumps(facts) if as_json else sentence)


def _tell_stage(as_json: bool, stage: Any) -> None:
    _tell(as_json, {"folder": str(stage.path), **stage.contents}, f"Done: {stage.path}")


Report = Callable[[str, int, int], None]


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Report | None]:
    """A progress bar with rate and time left on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        rich.TextColumn("{task.description:10}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        Rate(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, rich.TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done, total=total)

        yield report


def _named(report: Report | None, name: str) -> Callable[[int, int], None] | None:
    return None if report is None else lambda done, total: report(name, done, total)
