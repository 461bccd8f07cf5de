"""What a study answers besides its table: the best ensemble, the compute it takes, what entropy predicts."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from atoll.evaluate.intervals import over_repetitions
from atoll.evaluate.routing import predicts
from atoll.study.axes import BUDGET, CLUSTERS, SEED, STRATEGY
from atoll.study.tables import Row, Table, distance_of, heading, names, spread

HARMLESS = 0.01
"""What top-1 may lose, as a share of the mixture's loss, before it is said to lose."""


def headline(lines: Sequence[Row]) -> dict[str, Any] | None:
    """The ensemble that is best against its monolith, which is sampled in the way that is best for it."""
    known = [line for line in lines if not line["monolith"] and line["at_best"] is not None]
    if not known:
        return None
    best = min(known, key=lambda line: line["at_best"]["value"])
    kept = ("values", "strategy", "seeds", "distance", "change", "at_best")
    return {key: best[key] for key in kept}


def to_reach(goal: float, spent: Sequence[float], distances: Sequence[float]) -> float:
    """What must be spent for a distance, between two points by a line in the logarithms; inf for never."""
    if distances[0] <= goal:
        return spent[0]
    for (a, x), (b, y) in itertools.pairwise(zip(spent, distances, strict=True)):
        if y <= goal:
            share = (math.log(x) - math.log(goal)) / (math.log(x) - math.log(y))
            return math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
    return math.inf


def reached(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """With how much of the compute each kind of ensemble reaches the last monolith's distance.

    Seed by seed: the monolith of the largest budget sets the goal for the ensembles of its own seed.
    """
    budgets = {row["values"][BUDGET] for row in rows}
    last = {_beside(row): row for row in rows if row["monolith"] and row["values"][BUDGET] == max(budgets)}
    shares: dict[tuple[tuple[str, str], ...], list[tuple[Row, float, bool]]] = {}
    for (kind, _), curve in _curves(rows).items():
        monolith = last.get(_beside(curve[0]))
        if monolith is None or len(curve) < 2:
            continue
        spent = [row["training_flops"] for row in curve]
        needed = to_reach(distance_of(monolith), spent, [distance_of(row) for row in curve])
        share = needed / monolith["training_flops"]
        shares.setdefault(kind, []).append((monolith, share, needed == spent[0]))
    return [_reached(kind, seeds) for kind, seeds in shares.items()]


def _reached(kind: Sequence[tuple[str, str]], seeds: Sequence[tuple[Row, float, bool]]) -> dict[str, Any]:
    finite = [share for _, share, _ in seeds if math.isfinite(share)]
    return {
        "values": dict(kind),
        "goal": over_repetitions([distance_of(monolith) for monolith, _, _ in seeds]).facts(),
        "share": over_repetitions(finite).facts() if len(finite) == len(seeds) else None,
        "each": [share if math.isfinite(share) else None for _, share, _ in seeds],
        "at_most": any(at_once for _, _, at_once in seeds),
    }


def _curves(rows: Sequence[Row]) -> dict[tuple[tuple[tuple[str, str], ...], str], list[Row]]:
    """Ensembles that differ by their budget only, by budget, for each kind and seed."""
    curves: dict[tuple[tuple[tuple[str, str], ...], str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["values"][BUDGET]):
        if not row["monolith"]:
            kind = tuple((k, str(v)) for k, v in row["values"].items() if k not in (BUDGET, SEED))
            curves.setdefault((kind, str(row["values"].get(SEED))), []).append(row)
    return curves


def _beside(row: Row) -> tuple[tuple[str, str], ...]:
    """What a cell and its monolith have in common besides the budget."""
    return tuple((key, value) for key, value in json.loads(row["beside"]) if key != BUDGET)


def said_reached(answer: Row) -> str:
    """One of them as a sentence."""
    known = {key: value for key, value in answer["values"].items() if key not in (CLUSTERS, STRATEGY)}
    name = f"{answer['values'].get(CLUSTERS, 'several')} experts"
    name += f", {answer['values'][STRATEGY]}" if STRATEGY in answer["values"] else ""
    name += "".join(f", {heading(key)} {value}" for key, value in known.items())
    seeds, share = len(answer["each"]), answer["share"]
    goal = f"{name}: the monolith's final distance of {answer['goal']['value']:.2f} is reached "
    if share is None:
        missed = answer["each"].count(None)
        return goal + ("never." if missed == seeds else f"with {seeds - missed} of {seeds} seeds only.")
    over = f", mean over {seeds} seeds" if seeds > 1 else ""
    less = f"{1 / share['value']:.1f} times less"
    most = "at most " if answer["at_most"] else ""
    return f"{goal}with {most}{spread(share)} of its compute{over}: {less}{' at least' if most else ''}."


def foretold(examined: Sequence[Row]) -> Table:
    """Whether entropy predicts what top-1 loses: in all, within each training, and at each time."""
    body = [
        [row["over"], f"{row['pairs']}", spread(row["correlation"])]
        for row in predictions(examined)
        if row["correlation"] is not None
    ]
    return Table(["over", "pairs", "rank correlation"], body, where_greedy_breaks(examined))


def predictions(examined: Sequence[Row]) -> list[dict[str, Any]]:
    """Spearman's correlation of entropy and greedy loss, over times, over checkpoints, and over both."""
    rows = [_predicted("all times and checkpoints", examined)]
    if len(examined) == 1:
        return rows
    times = len(examined[0]["times"])
    at = [[{"times": [each["times"][index]]} for each in examined] for index in range(times)]
    rows += _mean_predicted("times, within a checkpoint", [[each] for each in examined], times)
    rows += _mean_predicted("checkpoints, at a time", at, len(examined))
    return rows + [
        _predicted(f"times, {name}", [each]) for name, each in zip(names(examined), examined, strict=True)
    ]


def _mean_predicted(over: str, several: Sequence[Sequence[Row]], pairs: int) -> list[dict[str, Any]]:
    known = [measured.value for each in several if (measured := predicts(each, 2)) is not None]
    if not known:
        return []
    mean = over_repetitions(known).facts()
    return [{"over": f"{over} (mean of {len(known)})", "pairs": pairs, "correlation": mean}]


def _predicted(over: str, examined: Sequence[Row]) -> dict[str, Any]:
    measured = predicts(examined)
    pairs = sum(len(each["times"]) for each in examined)
    return {"over": over, "pairs": pairs, "correlation": None if measured is None else measured.facts()}


def where_greedy_breaks(examined: Sequence[Row]) -> str:
    """At which noise level top-1 loses most against the whole mixture, and up to which it loses nothing."""
    times = [row["t"] for row in examined[0]["times"]]
    losses = [
        sum(each["times"][i]["greedy"] / each["times"][i]["full"] for each in examined) / len(examined)
        for i in range(len(times))
    ]
    worst = max(range(len(times)), key=lambda i: losses[i])
    harmless = [t for t, loss in zip(times, losses, strict=True) if loss < HARMLESS]
    calm = f" At t = {', '.join(f'{t:.2f}' for t in harmless)} it is below 1 %." if harmless else ""
    return (
        f"Top-1 loses most at t = {times[worst]:.2f}: its velocity loss is {losses[worst]:.1%} above that "
        f"of the whole mixture, mean over what was examined.{calm}"
    )
