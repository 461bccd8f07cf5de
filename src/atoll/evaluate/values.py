"""What a game says of parts: values with intervals, by time, class and cluster, and what does not fit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll.credit import defence, shapley
from atoll.credit.estimate import Estimate, estimate, shares
from atoll.credit.shapley import Game
from atoll.evaluate import held_out
from atoll.evaluate.home import Paid
from atoll.evaluate.intervals import NORMAL, Measured
from atoll.evaluate.worth import Played
from atoll.runs import Run

PART = "expert {}"
"""What a part is called, by its number."""
Of = Callable[[Game], Tensor]
"""Rows of a game, one number for each part."""


def record(run: Run, played: Played, late: Played) -> dict[str, Any]:
    """Everything as JSON; values are in units of the training loss. `late` are rows near the noise."""
    clip, owner = run.config.credit.clip, played.owner
    clipped = defence.clip(played.game, played.cluster, played.plan.stratum, clip, owner)
    every = run.members.count(run.config.partition.clusters)
    return {
        "loss": _losses(played),
        "parts": [
            {**part, "replaced": lost}
            for part, lost in zip(parts(run, played, clipped), replaced(played, late), strict=True)
        ],
        "times": _by_time(run, played),
        "clusters": _by(played, played.cluster, [str(k) for k in range(every)]),
        "classes": _classes(run, played),
        "redundancy": shapley.redundancy(played.game).mean(0).tolist(),
        "likeness": (alike := defence.likeness(played.game)).tolist(),
        "copies": [(owner[i], owner[j]) for i, j in defence.copies(alike)],
    }


def replaced(played: Played, late: Played) -> list[dict[str, Any]]:
    """What is lost at home near the noise where the others, by their shares, answer in a part's place."""
    counts = torch.bincount(played.cluster, minlength=max(late.owner) + 1)
    priors = counts[list(late.owner)] / counts.sum()
    rows = shapley.replaced(late.game, late.cluster, late.owner, priors)
    there = torch.bincount(late.cluster, minlength=max(late.owner) + 1)[list(late.owner)] / len(late.cluster)
    # By each part's share of all samples, not of these few (post-stratification, Cochran 1977, §5A.9).
    return _column(measured(late, rows * priors / there.clamp(min=1e-12)), len(rows))


def part_name(run: Run, number: int) -> str:
    """What a part is called: by its number, and one that was added by its name as well."""
    names = {member.number: member.name for member in run.members.added}
    return PART.format(number) if number not in names else f"{names[number]} ({number})"


def paid(run: Run, number: int, one: Paid | None, total: float) -> dict[str, Any]:
    """What is known of a part's payment; nothing of a part that is at home on none of the samples."""
    known = one or Paid(number, 0.0, 0.0, 0)
    return {
        "part": part_name(run, number),
        "number": number,
        "audited": facts(known.value, known.error, known.rows),
        "rows": known.rows,
        "relative_error": known.relative if math.isfinite(known.relative) else None,
        "share": max(0.0, known.value) / total if total > 0 else 0.0,
    }


def paid_table(record: dict[str, Any]) -> str:
    """What is paid for, for a person."""
    width = max(12, *(2 + len(part["part"]) for part in record["parts"]))
    lines = [line(("part", "paid for", "± 1 SE", "share", "rows"), width)]
    for part in record["parts"]:
        error = part["relative_error"]
        known = "unknown" if error is None else f"{100 * error:.1f} %"
        cells = (
            f"{part['audited']['value']:.3g}",
            known,
            f"{100 * part['share']:.1f} %",
            f"{part['rows']:,}",
        )
        lines.append(line((part["part"], *cells), width))
    cost, worst = (
        record["cost"]["of_one_training"],
        max(part["relative_error"] or math.inf for part in record["parts"]),
    )
    end = (
        "all are known as well as was wanted"
        if worst <= record["precision"]
        else "not all are known as well as was wanted"
    )
    spent = f"{100 * cost:,.{0 if cost > 1 else 2}f} % of the FLOPs of one expert's training"
    lines.append(f"{spent}; {end} ({100 * record['precision']:g} %); base: {record['base']}")
    return "\n".join(lines)


def part_size(run: Run, number: int) -> int:
    """Samples that a part was trained on."""
    sizes = run.partition.contents.sizes
    return sizes[number] if number < len(sizes) else run.component(number).contents.rows


def measured(played: Played, rows: Tensor, chosen: Tensor | None = None) -> Estimate:
    """Means of rows, or of the chosen ones, with errors that know which of them are of one sample.

    Rows are strata of time where each is of its own sample. A sample that is looked at several times counts
    once, with the mean of its rows: they are no independent witnesses.
    """
    plan = played.plan
    sample, stratum = (
        (plan.sample, plan.stratum) if chosen is None else (plan.sample[chosen], plan.stratum[chosen])
    )
    rows = rows if chosen is None else rows[chosen]
    which, back = torch.unique(sample, return_inverse=True)
    if len(which) == len(sample):
        return estimate(rows, stratum)
    counts = torch.bincount(back).double()
    sums = torch.zeros(len(which), *rows.shape[1:], dtype=torch.float64).index_add_(0, back, rows.double())
    # Weighted by how often each sample comes, so that the mean is that of all rows.
    scaled = sums * (len(which) / counts.sum())
    return estimate(scaled)


def facts(value: float, error: float, num: int) -> dict[str, Any]:
    """A number with the interval that holds it 95 times in 100."""
    return Measured(value, value - NORMAL * error, value + NORMAL * error, num).facts()


def _column(one: Estimate, num: int) -> list[dict[str, Any]]:
    return [facts(v, e, num) for v, e in zip(one.mean.tolist(), one.error.tolist(), strict=True)]


def _losses(played: Played) -> dict[str, Any]:
    """What base and ensemble lose, and what all experts are worth together."""
    game, num = played.game, len(played.game.base)
    rows = torch.stack([game.base, shapley.losses(game), shapley.gain(game)], 1)
    return dict(zip(("base", "ensemble", "gain"), _column(measured(played, rows), num), strict=True))


def parts(run: Run, played: Played, clipped: Game) -> list[dict[str, Any]]:
    """Every part: its value, its share of the gain, what would be lost without it, and whether to look."""
    game, num, owner = played.game, len(played.game.base), torch.tensor(played.owner)
    values = measured(played, shapley.shapley(game))
    columns = {
        "value": values,
        "audited": measured(played, shapley.shapley(defence.at_home(clipped, played.cluster, owner))),
        "missed": measured(played, shapley.leave_one_out(game)),
        "left_out": measured(played, shapley.left_out(game)),
        "routed": measured(played, game.weights),
        "display": measured(played, shapley.redundancy(game).sum(2)),
    }
    alarms = defence.alarms(values.mean, columns["missed"].mean).tolist()
    whole = float(values.mean.sum())
    marks = {member.number: member.mark for member in run.members.present}
    return [
        {
            "part": part_name(run, number),
            "number": number,
            "samples": part_size(run, number),
            "checked": marks.get(number),
            "at_home": int((played.cluster == number).sum()),
            "share": float(shares(values)[k]),
            "per_cent": 100 * float(values.mean[k]) / whole if whole > 0 else None,
            **{name: _column(column, num)[k] for name, column in columns.items()},
            "ratio": _ratio(float(values.mean[k]), float(columns["missed"].mean[k])),
            "look": alarms[k],
        }
        for k, number in enumerate(played.owner)
    ]


def _ratio(value: float, missed: float) -> float | None:
    """Value over what would be missed: about 0.9 of an honest part."""
    return value / missed if missed > 0 and math.isfinite(value / missed) else None


def _by_time(run: Run, played: Played) -> list[dict[str, Any]]:
    ends = held_out.edges(run)
    rows = _by(played, played.plan.stratum, [str(index) for index in range(len(ends) - 1)])
    return [{"from": ends[int(row["group"])], "to": ends[int(row["group"]) + 1], **row} for row in rows]


def _classes(run: Run, played: Played) -> list[dict[str, Any]]:
    names = run.partition.contents.class_names
    return [] if played.label is None or not names else _by(played, played.label, names)


def _by(played: Played, group: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """The values of all parts among the rows of each group, and what the group adds to them.

    `values` are means within the group; those of all rows are their mean, weighted by the groups' rows.
    """
    rows, table = shapley.shapley(played.game), []
    for index, name in enumerate(names):
        chosen = (group == index).nonzero()[:, 0]
        if len(chosen) > 1:
            one = measured(played, rows, chosen)
            table.append({"group": name, "rows": len(chosen), "values": _column(one, len(chosen))})
    return table


def table(record: dict[str, Any]) -> str:
    """The record for a person."""
    width = max(12, *(2 + len(part["part"]) for part in record["parts"]))
    head = ("part", "samples", "value", "± 95 %", "per cent", "missed", "left out", "replaced", "routed")
    lines = [line(head, width)]
    for part in record["parts"]:
        value = part["value"]
        cells = [
            part["part"],
            f"{part['samples']:,}",
            f"{value['value']:.3g}",
            f"{(value['high'] - value['low']) / 2:.2g}",
            "" if part["per_cent"] is None else f"{part['per_cent']:.1f} %",
            f"{part['missed']['value']:.3g}",
            f"{part['left_out']['value']:.3g}",
            f"{part['replaced']['value']:.3g}",
            f"{100 * part['routed']['value']:.1f} %",
        ]
        lines.append(line(cells, width) + ("   look at it" if part["look"] else ""))
    loss = record["loss"]
    lines.append(
        f"together {loss['gain']['value']:.3g} ({loss['gain']['low']:.3g} to {loss['gain']['high']:.3g}) "
        f"of the base's loss {loss['base']['value']:.4g}; base: {record['base']}"
    )
    lines += [f"{part['part']}: {part['checked']}" for part in record["parts"] if part.get("checked")]
    lines += [f"parts {i} and {j} say the same: one may be a copy" for i, j in record["copies"]]
    lines += [
        f"{part['part']} is at home on none of these samples, so that nobody knows what to pay it for; "
        f"give some of its data that nobody trained on: --held-out {part['number']}=SOURCE"
        for part in record["parts"]
        if not part["at_home"]
    ]
    return "\n".join(lines)


def line(cells: Sequence[str], width: int) -> str:
    """A line of a table, whose first column is as wide as the longest name."""
    return f"{cells[0]:>{width}}" + "".join(f"{cell:>12}" for cell in cells[1:])
