"""What parts are worth and who made a sample, as pages that need nothing but a browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.evaluate import given, lost
from atoll.pages import traces
from atoll.pages.drawing import drawn
from atoll.pages.report import colour, template
from atoll.runs import CREDIT, Run, read_stamped, replacing
from atoll.sampling.makers import SENTENCE

USES = (
    "A value says how much better the ensemble predicts these held-out samples with a part than with the "
    "base in its place. It does not say whose rights are in a sample, how good or lawful a part's data is, "
    "or what another ensemble, another base or other held-out samples would say; a share for display can be "
    "raised at will."
)


def write_credit(run: Run, record: Mapping[str, Any]) -> Path:
    """Write `credit/credit.html`: values, where they come from, and what parts take from each other."""
    path = (run.path / CREDIT).with_suffix(".html")
    parts = [{**part, "colour": colour(part["number"])} for part in record["parts"]]
    groups = [
        ("time", [{**row, "group": f"{row['from']:.2f} to {row['to']:.2f}"} for row in record["times"]]),
        ("class", record["classes"]),
        ("cluster", record["clusters"]),
    ]
    page = template("credit.html.j2").render(
        name=run.config.name,
        record=record,
        parts=parts,
        plots=[
            drawn(lambda axes: _values(axes, parts)),
            drawn(lambda axes: _by_time(axes, parts, record["times"])),
        ],
        groups=[(title, rows) for title, rows in groups if rows],
        redundancy=_scaled(record["redundancy"]),
        own=traces.own(run, record),
        colours=[colour(k) for k in range(run.members.count(run.config.partition.clusters))],
        sentence=SENTENCE,
        uses=USES,
        distance=lost.kept(run),
    )
    return _written(path, page)


def write_distance(run: Run, record: Mapping[str, Any]) -> Path:
    """Write `credit/distance.html`; beside it the page of values, where they are known, tells the same."""
    page = template("distance.html.j2").render(name=run.config.name, distance=record)
    known = run.path / CREDIT
    if known.is_file() and (valued := read_stamped(known)).get("networks") == record["networks"]:
        write_credit(run, valued)
    return _written(known.with_name("distance.html"), page)


def _values(axes: Any, parts: Sequence[Mapping[str, Any]]) -> None:
    for k, part in enumerate(parts):
        value = part["value"]
        axes.bar(k, value["value"], color=part["colour"], width=0.7)
        axes.plot([k, k], [value["low"], value["high"]], color="#1c2833", lw=1.2)
    axes.axhline(0, color="#1c2833", lw=0.6)
    axes.set(xlabel="part", ylabel="value, in units of the loss", xticks=range(len(parts)))
    axes.set_xticklabels([part["number"] for part in parts])


def _by_time(axes: Any, parts: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]) -> None:
    middles = [(row["from"] + row["to"]) / 2 for row in times]
    for k, part in enumerate(parts):
        axes.plot(middles, [row["values"][k]["value"] for row in times], color=part["colour"], lw=1.4)
    axes.axhline(0, color="#1c2833", lw=0.6)
    axes.set(xlabel="t", ylabel="value at this time", xlim=(0, 1))


def _scaled(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Redundancy in per cent of the largest square of an expert's own part."""
    largest = max(row[k] for k, row in enumerate(matrix)) or 1.0
    return [[100 * value / largest for value in row] for row in matrix]


def write_traced(run: Run, picture: Path, traced: Mapping[str, Any]) -> Path:
    """Write `credit/<name>.html`: a picture, its likelihoods, its routing over time, its nearest by part."""
    times = traced["times"]
    page = template("traced.html.j2").render(
        name=run.config.name,
        traced=traced,
        picture=traces.shown(run, given.read(run, picture)),
        parts=[
            {
                "index": k,
                "colour": colour(k),
                "probability": probability,
                "bits": traced["bits_per_value_worse"][k],
                "nearest": traces.nearest(run, traced["nearest"][k] if traced["nearest"] else []),
                "royalty": traced["royalties"][k] if traced["royalties"] else None,
            }
            for k, probability in _likeliest_first(traced["posterior"])
            if traced["bits_per_value_worse"][k] is not None  # who is gone made nothing
        ],
        plot=drawn(lambda axes: _routed(axes, times, traced["weights"])),
    )
    return _written((run.path / CREDIT).with_name(f"{picture.stem}.html"), page)


def _likeliest_first(posterior: Sequence[float]) -> list[tuple[int, float]]:
    """Parts with their probabilities: whose nearest samples one should look at comes first."""
    return sorted(enumerate(posterior), key=lambda one: -one[1])


def _routed(axes: Any, times: Sequence[float], weights: Sequence[Sequence[float]]) -> None:
    for k in range(len(weights[0])):
        axes.plot(times, [at[k] for at in weights], color=colour(k), lw=1.4)
    axes.set(xlabel="t", ylabel="p(expert | noised picture)", ylim=(0, 1.02), xlim=(0, 1))


def _written(path: Path, page: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")
    return path
