"""Numbers and samples to one page that needs nothing but a browser."""

import base64
import io
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch

from atoll.config import RunConfig
from atoll.provenance import PALETTE
from atoll.runs import Run, read_json, read_lines, replacing


def write_report(run: Run, samples: Path) -> Path:
    """Write `report/report.html`: what was made, by whom, and how it was learnt."""
    clusters = run.config.partition.clusters
    makers: list[int] = read_json(samples / "samples.json")["experts"]
    sizes: list[int] = run.partition.contents["sizes"]
    shares = [size / sum(sizes) for size in sizes]
    made = [makers.count(index) / len(makers) for index in range(clusters)]
    page = _template().render(
        name=run.config.name,
        widest=max(shares + made),
        grid=_embedded(samples / "grid.png"),
        experts=[
            {
                "index": index,
                "colour": PALETTE[index % len(PALETTE)],
                "rows": sizes[index],
                "share": shares[index],
                "made": made[index],
                "gallery": _embedded(_gallery(run, index)),
                "loss": _last_loss(run.expert(index).path),
            }
            for index in range(clusters)
        ],
        curves=_loss_curves(run),
        facts=_facts(run),
        num=len(makers),
        recipe=_recipe(run),
    )
    path = run.path / "report" / "report.html"
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")
    return path


def _template() -> jinja2.Template:
    text = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text)


def _gallery(run: Run, index: int) -> Path:
    return run.partition.path / f"gallery-{index:02d}.png"


def _embedded(path: Path) -> str | None:
    """A picture as a data address; None where there is none, as for samples that are not pictures."""
    if not path.is_file():
        return None
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _last_loss(folder: Path) -> float | None:
    lines = read_lines(folder / "metrics.jsonl")
    return sum(line["loss"] for line in lines[-5:]) / len(lines[-5:]) if lines else None


def _loss_curves(run: Run) -> str:
    """The losses of all experts and of the router, as an SVG that takes the colours of the page."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only needed here
    from matplotlib.figure import Figure  # noqa: PLC0415

    has_router = run.router.done
    with mpl.rc_context(
        {"svg.hashsalt": "atoll", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(9, 3), layout="constrained")
        axes = figure.subplots(1, 2 if has_router else 1, squeeze=False)[0]
        for index in range(run.config.partition.clusters):
            lines = read_lines(run.expert(index).path / "metrics.jsonl")
            _curve(axes[0], lines, PALETTE[index % len(PALETTE)], f"expert {index}")
        students = [stage for stage in (run.student, run.few_step) if stage.done]
        for stage, line in zip(students, ("-", "--"), strict=False):
            _curve(axes[0], read_lines(stage.path / "metrics.jsonl"), "#333333", stage.path.name, line)
        title = "experts, and students in black" if students else "experts"
        axes[0].set(xlabel="step", ylabel="velocity loss", title=title, yscale="log")
        if has_router:
            _curve(axes[1], read_lines(run.router.path / "metrics.jsonl"), "#333333", "router")
            axes[1].set(xlabel="step", ylabel="cross-entropy (nats)", title="router", ylim=(0, None))
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _curve(axes: Any, lines: Sequence[dict[str, Any]], colour: str, label: str, style: str = "-") -> None:
    steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]
    axes.plot(steps, losses, color=colour, label=label, lw=1.2, ls=style)


def _facts(run: Run) -> list[tuple[str, str]]:
    config: RunConfig = run.config
    steps, batch = config.expert.steps, config.expert.batch
    clusters = config.partition.clusters
    return [
        ("data", f"{config.data.source}, {sum(run.partition.contents['sizes']):,} samples"),
        ("clusters", f"{clusters}, by {config.partition.method}"),
        (
            "each expert",
            f"width {config.expert.width}, depth {config.expert.depth}, {steps:,} steps of {batch}",
        ),
        ("training samples in all", f"{clusters * steps * batch:,}"),
        *_distilled(run),
        ("sampled with", f"{config.sample.solver}, {config.sample.steps} steps, {config.sample.strategy}"),
        ("seed", str(config.seed)),
        ("made with", f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"),
    ]


def _distilled(run: Run) -> list[tuple[str, str]]:
    """The students that there are."""
    stages = [stage for stage in (run.student, run.few_step) if stage.done]
    return [
        (stage.path.name, f"{stage.contents['steps']:,} steps, in {stage.path.name}/") for stage in stages
    ]


def _recipe(run: Run) -> str:
    path = run.path / "run.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
