"""Numbers and samples to one page that needs nothing but a browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from atoll import doctor
from atoll.config import RunConfig, TrainConfig
from atoll.data.summary import sentences
from atoll.evaluate import routing
from atoll.evaluate.evaluation import networks
from atoll.pages import growing, held_out, measured, traces
from atoll.pages.drawing import drawn
from atoll.pages.pictures import embedded
from atoll.runs import CREDIT, RECIPE, Run, Stage, read_lines, read_stamped, replacing
from atoll.runs.evaluations import read_evaluation
from atoll.runs.records import DataContents, PartitionContents
from atoll.sampling.makers import SENTENCE
from atoll.sampling.opening import entered_at, open_run_model
from atoll.sampling.provenance import PALETTE

EXAMINED = 250
"""Real samples that the router is shown at each time."""
TIMES = tuple(index / 20 for index in range(21))
INK = "#1c2833"


def write_again(run: Run) -> None:
    """Write the page anew where there are samples to show: numbers have come since."""
    if (run.samples.path / "samples.json").is_file():
        write_report(run, run.samples.path)


def write_report(run: Run, samples: Path) -> Path:
    """Write `report/report.html`: what was made, by whom, and how it was learnt."""
    clusters = run.config.partition.clusters
    record = read_stamped(samples / "samples.json")
    makers: list[int] = record["experts"]
    contents = run.partition.contents
    shares, share_of = expected_shares(contents, record)
    made = [makers.count(index) / len(makers) for index in range(clusters)]
    evaluation = read_evaluation(run)
    rows = evaluation.measured
    used = record.get("strategy") or run.config.sample.strategy
    page = template("report.html.j2").render(
        name=run.config.name,
        widest=max(shares + made),
        grid=embedded(samples / "grid.png"),
        marked=any(max(row) < 1 for row in record["shares"]),
        columns=columns_of(record),
        has_router=run.router.done,
        has_start=run.config.start is not None,
        numbers=_numbers(run),
        experts=[
            _expert(run, index) | {"share": shares[index], "made": made[index]} for index in range(clusters)
        ],
        worth=(credited := _credited(run)).get("parts", []),
        own=traces.own(run, credited),
        colours=[colour(index) for index in range(run.members.count(clusters))],
        sentence=SENTENCE,
        curves=_loss_curves(run),
        held_out=held_out.table(run),
        growing=growing.rows(run),
        posterior=_posterior(run) if run.router.done and clusters > 1 and _samples_are_here(run) else [],
        share_of=share_of,
        strategies=measured.strategies(run, rows, used),
        distance=measured.distance_name(rows),
        measured=measured.numbers(rows),
        shares=measured.shares(rows, contents.class_names),
        by_time=measured.by_time(evaluation.routing),
        understood=understood(run),
        facts=_facts(run, used),
        num=len(makers),
        recipe=_recipe(run),
    )
    path = run.report.path / "report.html"
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")
    return path


def _expert(run: Run, index: int) -> dict[str, Any]:
    """What is shown of one expert."""
    return {
        "index": index,
        "colour": colour(index),
        "rows": run.partition.contents.sizes[index],
        "gallery": embedded(_gallery(run, index)),
        "loss": _last_loss(run.expert(index).path),
    }


def _credited(run: Run) -> dict[str, Any]:
    """What `atoll credit` said of the parts, if it valued these networks."""
    path = run.path / CREDIT
    record = read_stamped(path) if path.is_file() else {}
    return record if record.get("networks") == networks(run) else {}


def template(name: str) -> jinja2.Template:
    """A page to be filled in; everything that is put into it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=loader, trim_blocks=True
    ).get_template(name)


def colour(index: int) -> str:
    """The colour of an expert."""
    return PALETTE[index % len(PALETTE)]


def columns_of(record: Mapping[str, Any], widest: int = 16) -> list[str]:
    """What the columns of the grid were asked to be, where few things were asked for in turn."""
    words: list[str] = record.get("class") or record.get("prompt") or []
    names = list(dict.fromkeys(words))
    return names if 1 < len(names) <= widest and len(names) < len(words) else []


def understood(run: Run) -> list[tuple[str, str]]:
    """What `prepare` took the source for, as far as its record tells."""
    if not run.data.done:
        return []
    contents = run.data.contents
    shape = " x ".join(str(size) for size in contents.shape)
    names = contents.class_names
    return [
        ("samples", f"{contents.rows:,}, {contents.kind}, {shape} (channels, then the grid)"),
        ("classes", f"{len(names):,}: {_few(names)}" if names else "none"),
        ("captions", "read by a text encoder" if contents.text else "not used"),
        ("equal to another", f"{contents.duplicates:,}"),
        ("skipped", _skipped(contents)),
    ]


def _few(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _skipped(contents: DataContents) -> str:
    reasons = [f"{item['name']}: {item['reason']}" for item in contents.skipped_examples[:3]]
    return "; ".join([f"{contents.skipped:,}", *reasons])


def _gallery(run: Run, index: int) -> Path:
    return run.partition.path / f"gallery-{index:02d}.png"


def _metrics(run: Run) -> list[list[dict[str, Any]]]:
    """The lines of all jobs, experts first, then the router."""
    stages = [run.expert(index) for index in range(run.config.partition.clusters)]
    stages += [run.router] if run.router.done else []
    return [read_lines(stage.path / "metrics.jsonl") for stage in stages]


def _last_loss(folder: Path) -> float | None:
    lines = read_lines(folder / "metrics.jsonl")
    return sum(line["loss"] for line in lines[-5:]) / len(lines[-5:]) if lines else None


def _loss_curves(run: Run) -> list[str]:
    """The losses of all experts, and of the router."""
    metrics = _metrics(run)
    clusters = run.config.partition.clusters
    students = _students(run)

    def experts(axes: Any) -> None:
        for index, lines in enumerate(metrics[:clusters]):
            _curve(axes, lines, colour(index))
        for stage, style in zip(students, ("-", "--"), strict=False):
            _curve(axes, read_lines(stage.path / "metrics.jsonl"), INK, style)
        title = "experts, and students in black" if students else "experts"
        axes.set(xlabel="step", ylabel="velocity loss", title=title, yscale="log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda loss, _: f"{loss:g}" if f"{loss:e}"[0] in "12357" else "")

    def router(axes: Any) -> None:
        _curve(axes, metrics[-1], INK)
        axes.set(xlabel="step", ylabel="cross-entropy (nats)", title="router", ylim=(0, None))

    return [drawn(experts)] + ([drawn(router)] if len(metrics) > clusters else [])


def _curve(axes: Any, lines: Sequence[Mapping[str, Any]], ink: str, style: str = "-") -> None:
    steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]
    # A short training may have logged a single point, of which a line shows nothing.
    axes.plot(steps, losses, color=ink, lw=1.3, ls=style, marker="o" if len(steps) == 1 else None, ms=4)
    held = [(line["step"], line["holdout"]) for line in lines if "holdout" in line]
    axes.plot(
        [step for step, _ in held], [loss for _, loss in held], color=ink, lw=1, ls=":", marker="o", ms=2
    )


def _samples_are_here(run: Run) -> bool:
    """The machine that draws up a run from a store need not have its samples."""
    return all(run.cluster(index).here for index in range(run.config.partition.clusters))


def _posterior(run: Run) -> list[str]:
    """What the router makes of real samples, against the time."""
    examined = routing.examine(open_run_model(run).ensemble, run, EXAMINED, experts=False, times=TIMES)[
        "times"
    ]
    times = [row["t"] for row in examined]

    def by_cluster(axes: Any) -> None:
        for index in range(run.config.partition.clusters):
            known = [(row["t"], row["own_probability"][index]) for row in examined]
            known = [(t, p) for t, p in known if p is not None]
            axes.plot([t for t, _ in known], [p for _, p in known], color=colour(index), lw=1.4)
        axes.set(xlabel="t", ylabel="probability of the own cluster", ylim=(0, 1.02), xlim=(0, 1))

    def overall(axes: Any) -> None:
        axes.plot(times, [row["accuracy"] for row in examined], color=INK, lw=1.5, label="accuracy")
        axes.plot(times, [row["entropy"] for row in examined], color="#ee7733", lw=1.5, label="entropy")
        axes.set(xlabel="t", ylabel="share of the largest possible", ylim=(0, 1.02), xlim=(0, 1))
        axes.legend(frameon=False)

    return [drawn(by_cluster), drawn(overall)]


def expected_shares(contents: PartitionContents, record: Mapping[str, Any]) -> tuple[list[float], str]:
    """Each cluster's share of what should have been made, and of what that is the share.

    Samples that were asked to be of certain classes, each as often, are not spread as the data are: what is
    expected of a cluster is its share of each class, over the classes that were asked for.
    """
    sizes, counts, classes = contents.sizes, contents.labels, record.get("class")
    names = list(contents.class_names)
    if not counts or not classes or any(name not in names for name in classes):
        return [size / sum(sizes) for size in sizes], "of the data"
    whole = [sum(row[index] for row in counts) for index in range(len(names))]
    wanted = [names.index(name) for name in classes]
    shares = [
        sum(row[index] / whole[index] for index in wanted if whole[index]) / len(wanted) for row in counts
    ]
    return shares, "of what was asked for"


def _numbers(run: Run) -> list[tuple[str, str]]:
    """What happened, in a few figures."""
    clusters = run.config.partition.clusters
    trainings: list[TrainConfig] = [run.expert_settings(index) for index in range(clusters)]
    seconds = sum(_seconds(lines) for lines in _metrics(run))
    for training, stage in ((run.config.start, run.start), (run.config.shared, run.shared)):
        if training is not None:
            trainings.append(training)
            seconds += _seconds(read_lines(stage.path / "metrics.jsonl"))
    trained = sum(training.steps * training.batch for training in trainings)
    return [
        (f"{sum(run.partition.contents.sizes):,}", "real samples"),
        (str(clusters), "experts" if clusters > 1 else "model"),
        (f"{trained:,}", "training samples in all"),
        (duration(seconds), "of training, jobs added up"),
    ]


def _seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """How long a job took by its lines; the way to the first of them is reckoned like the rest."""
    if len(lines) < 2:
        return 0.0
    seconds: float = lines[-1]["time"] - lines[0]["time"]
    steps = lines[-1]["step"] - lines[0]["step"]
    return seconds * lines[-1]["step"] / max(1, steps)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _understood(run: Run) -> list[tuple[str, str]]:
    """What `prepare` took the source for, where its record is here."""
    if not run.data.done:
        return []
    return [("understood as", " · ".join(line.strip() for line in sentences(run.data.contents)))]


def _facts(run: Run, used: str) -> list[tuple[str, str]]:
    config: RunConfig = run.config
    expert, router = config.expert, config.router
    clusters = config.partition.clusters
    facts = [
        ("data", f"{config.data.source}, {sum(run.partition.contents.sizes):,} samples"),
        *_understood(run),
        ("clusters", f"{clusters}, by {config.partition.method}"),
        *_kept_back(run),
        ("condition", config.condition.kind),
        (
            "each expert",
            f"width {expert.width}, depth {expert.depth}, "
            f"{expert.steps:,} steps of {config.expert_for(0).batch}",
        ),
    ]
    if clusters > 1:
        facts.append(
            (
                "router",
                f"width {router.width}, depth {router.depth}, {router.steps:,} steps of {router.batch}",
            )
        )
    sample = run.sampled_with
    farther = f", experts extrapolated by {sample.extrapolate:g}" if sample.extrapolate != 1 else ""
    begin = entered_at(run)
    entered = f", entered at t = {begin:g}" if begin != 1 else ""
    facts += [
        *_added(run),
        *_distilled(run),
        (
            "sampled with",
            f"{sample.solver}, {sample.steps} steps, {used}, guidance {sample.guidance:g}{farther}{entered}",
        ),
        *_chosen(run),
        ("seeds", f"{config.seed} of training, {sample.seed} of sampling"),
        ("finished jobs", ", ".join(duration(_seconds(lines)) for lines in _metrics(run))),
    ]
    return facts + made_with()


def _chosen(run: Run) -> list[tuple[str, str]]:
    """What was chosen by a few samples, and how far those of each value were from the data."""
    if not (run.config.sample.chooses and run.guidance.done):
        return []
    choice = run.guidance.contents
    tried = {"guidance": choice.distances, "extrapolation": choice.extrapolations}
    return [
        (f"{what} chosen by samples", ", ".join(f"{value:g}: {distance:.3g}" for value, distance in pairs))
        for what, pairs in tried.items()
        if pairs
    ]


def _added(run: Run) -> list[tuple[str, str]]:
    """Parts that have come since, whose they are, and those that serve no longer."""
    members = run.members
    facts = []
    for member in members.present:
        contents = run.component(member.number).contents
        owner = "" if contents.card.owner is None else f", of {contents.card.owner}"
        words = f"{member.name}{owner} ({contents.card.licence}), {contents.rows:,} samples of its own"
        facts.append((f"part {member.number}, added", f"{words}; {member.mark}"))
    gone = ", ".join(map(str, sorted(members.dropped)))
    return [*facts, *([("parts that serve no longer", gone)] if gone else [])]


def _kept_back(run: Run) -> list[tuple[str, str]]:
    """How many samples nobody trained on, if any."""
    count = run.partition.contents.holdout
    return (
        [("held out", f"{count:,} samples ({run.config.data.holdout:.3g} of all), never trained on")]
        if count
        else []
    )


def made_with() -> list[tuple[str, str]]:
    """Versions and hardware."""
    machine = doctor.examine()
    return [
        ("made with", f"Atoll {machine['atoll']}, torch {machine['torch']}, Python {machine['python']}"),
        ("on", f"{machine['device']}, {machine['cores']} cores, {machine['memory']}"),
    ]


def _distilled(run: Run) -> list[tuple[str, str]]:
    """The students that there are."""
    return [
        (stage.path.name, f"{stage.contents.steps:,} steps, in {stage.path.name}/")
        for stage in _students(run)
    ]


def _students(run: Run) -> list[Stage]:
    return [stage for stage in (run.student, run.few_step) if stage.done]


def _recipe(run: Run) -> str:
    path = run.path / RECIPE
    return path.read_text(encoding="utf-8") if path.is_file() else ""
