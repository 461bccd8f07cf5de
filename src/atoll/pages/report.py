"""Numbers and samples to one page that needs nothing but a browser."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from atoll import doctor
from atoll.config import RunConfig
from atoll.data.summary import sentences
from atoll.evaluate import routing
from atoll.evaluate.evaluation import FILE as EVALUATION
from atoll.pages.drawing import drawn
from atoll.plan import strategy_costs
from atoll.runs import RECIPE, Run, Stage, read_json, read_lines, replacing
from atoll.sampling.opening import open_run_model
from atoll.sampling.provenance import PALETTE

EXAMINED = 250
"""Real samples that the router is shown at each time."""
TIMES = tuple(index / 20 for index in range(21))
INK = "#1c2833"


def write_report(run: Run, samples: Path) -> Path:
    """Write `report/report.html`: what was made, by whom, and how it was learnt."""
    clusters = run.config.partition.clusters
    record = read_json(samples / "samples.json")
    makers: list[int] = record["experts"]
    sizes = run.partition.contents.sizes
    shares = [size / sum(sizes) for size in sizes]
    made = [makers.count(index) / len(makers) for index in range(clusters)]
    evaluation = _evaluation(run)
    used = record.get("strategy") or run.config.sample.strategy
    page = template("report.html.j2").render(
        name=run.config.name,
        widest=max(shares + made),
        grid=embedded(samples / "grid.png"),
        marked=any(max(row) < 1 for row in record["shares"]),
        has_router=run.router.done,
        numbers=_numbers(run),
        experts=[
            {
                "index": index,
                "colour": colour(index),
                "rows": sizes[index],
                "share": shares[index],
                "made": made[index],
                "gallery": embedded(_gallery(run, index)),
                "loss": _last_loss(run.expert(index).path),
            }
            for index in range(clusters)
        ],
        curves=_loss_curves(run),
        posterior=_posterior(run) if run.router.done and clusters > 1 and _samples_are_here(run) else [],
        strategies=_strategies(run, evaluation, used),
        distance=_distance_name(evaluation),
        measured=_measured(evaluation),
        by_time=_by_time(run),
        facts=_facts(run, used),
        num=len(makers),
        recipe=_recipe(run),
    )
    path = run.path / "report" / "report.html"
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")
    return path


def template(name: str) -> jinja2.Template:
    """A page to be filled in; everything that is put into it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=loader, trim_blocks=True
    ).get_template(name)


def colour(index: int) -> str:
    """The colour of an expert."""
    return PALETTE[index % len(PALETTE)]


def _gallery(run: Run, index: int) -> Path:
    return run.partition.path / f"gallery-{index:02d}.png"


def embedded(path: Path) -> str | None:
    """A picture as a data address; None where there is none, as for samples that are not pictures."""
    if not path.is_file():
        return None
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


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
    found = _metrics(run)
    clusters = run.config.partition.clusters
    students = _students(run)

    def experts(axes: Any) -> None:
        for index, lines in enumerate(found[:clusters]):
            _curve(axes, lines, colour(index))
        for stage, style in zip(students, ("-", "--"), strict=False):
            _curve(axes, read_lines(stage.path / "metrics.jsonl"), INK, style)
        title = "experts, and students in black" if students else "experts"
        axes.set(xlabel="step", ylabel="velocity loss", title=title, yscale="log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda loss, _: f"{loss:g}" if f"{loss:e}"[0] in "12357" else "")

    def router(axes: Any) -> None:
        _curve(axes, found[-1], INK)
        axes.set(xlabel="step", ylabel="cross-entropy (nats)", title="router", ylim=(0, None))

    return [drawn(experts)] + ([drawn(router)] if len(found) > clusters else [])


def _curve(axes: Any, lines: Sequence[Mapping[str, Any]], ink: str, style: str = "-") -> None:
    steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]
    # A short training may have logged a single point, of which a line shows nothing.
    axes.plot(steps, losses, color=ink, lw=1.3, ls=style, marker="o" if len(steps) == 1 else None, ms=4)


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


def _evaluation(run: Run) -> dict[str, Any]:
    path = run.path / "evaluation" / EVALUATION
    return dict(read_json(path)["strategies"]) if path.is_file() else {}


def _first_space(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(row["features"].values()))


def _distance_name(evaluation: Mapping[str, Any]) -> str | None:
    return next((_first_space(row)["distance"] for row in evaluation.values()), None)


def _strategies(run: Run, evaluation: Mapping[str, Any], used: str) -> list[dict[str, Any]]:
    """What each strategy costs, and how near the data its samples are where that was measured."""
    costs = strategy_costs(run.config, run.partition.contents.facts())
    distances = {
        row["strategy"]: f"{_first_space(row)['frechet']['value']:.2f}" for row in evaluation.values()
    }
    base = costs["ancestral"]["flops"]
    return [
        {
            "name": name,
            "used": name == used and len(costs) > 1,
            "once": f"{cost['flops']:.3g}",
            "whole": f"{cost['flops_per_sample']:.3g}",
            "times": f"{cost['flops'] / base:.2f}",
            "distance": distances.get(name, ""),
        }
        for name, cost in costs.items()
    ]


MEASURED = {"kernel": "kernel distance", "precision": "precision", "recall": "recall"}


def _measured(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """The table of what was measured: a row for each number, a column for each strategy, and the floor."""
    rows: dict[str, dict[str, Any]] = {}
    for column, found in enumerate(evaluation.values()):
        for what, number, floor in _numbers_of(found):
            row = rows.setdefault(
                what, {"what": what, "floor": _short(floor), "cells": [None] * len(evaluation)}
            )
            row["cells"][column] = {"value": _short(number["value"]), "interval": _interval(number)}
    if not rows:
        return None
    first = next(iter(evaluation.values()))
    titles = [found["strategy"] for found in evaluation.values()]
    return {"strategies": titles, "rows": list(rows.values()), "num": first["copies"]["num"]}


def _numbers_of(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], float | None]]:
    """Every number of a strategy with its floor."""
    for space in found["features"].values():
        for key, what in {"frechet": space["distance"], **MEASURED}.items():
            yield what, space[key], space["floor"][key]
    for key in ("clusters", "classes"):
        if key in found:
            yield f"divergence of {key} (bits)", found[key]["divergence"], found[key].get("floor")
    yield "share of training samples copied", found["copies"], found["copies"]["floor"]
    if "disagreement" in found:
        yield "disagreement of active experts", found["disagreement"], None
    if "monolith" in found:
        alike = found["monolith"]
        yield "likeness to the monolith", alike["matched"], alike["strangers"]["value"]


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _interval(number: Mapping[str, Any]) -> str:
    return "" if number["low"] is None else f"{_short(number['low'])} to {_short(number['high'])}"


BY_TIME = ("accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "disagreement")


def _by_time(run: Run) -> dict[str, Any] | None:
    """Router and experts by time as they were measured, each number with half its interval."""
    path = run.path / "evaluation" / EVALUATION
    found = read_json(path).get("routing") if path.is_file() else None
    if found is None:
        return None
    body = [[f"{row['t']:.2f}", *(_with_half(row, name) for name in BY_TIME)] for row in found["times"]]
    return {"head": ("t", *BY_TIME), "body": body, "num": found["num"]}


def _with_half(row: Mapping[str, Any], name: str) -> str:
    between = row.get("intervals", {}).get(name)
    half = "" if between is None else f" ± {(between[1] - between[0]) / 2:.3f}"
    return f"{row[name]:.3f}{half}"


def _numbers(run: Run) -> list[tuple[str, str]]:
    """What happened, in a few figures."""
    config, clusters = run.config, run.config.partition.clusters
    trained = sum(config.expert_for(k).steps * config.expert_for(k).batch for k in range(clusters))
    seconds = sum(_seconds(lines) for lines in _metrics(run))
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
    how = config.sample
    facts += [
        *_distilled(run),
        ("sampled with", f"{how.solver}, {how.steps} steps, {used}, guidance {how.guidance:g}"),
        ("seeds", f"{config.seed} of training, {how.seed} of sampling"),
        ("finished jobs", ", ".join(duration(_seconds(lines)) for lines in _metrics(run))),
    ]
    return facts + made_with()


def made_with() -> list[tuple[str, str]]:
    """Versions and hardware."""
    found = doctor.examine()
    return [
        ("made with", f"Atoll {found['atoll']}, torch {found['torch']}, Python {found['python']}"),
        ("on", f"{found['device']}, {found['cores']} cores, {found['memory']}"),
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
