"""The rows of the README's table: each printed from what was measured, or measured again.

    python -m benchmarks.readme --row 1             the row as it stands, from docs/measured.json
    python -m benchmarks.readme --row 1 --rerun     run what it comes from, write that down, and print it

Rows 1 and 2 take half an hour of two cores each, row 3 two hours, the others minutes; nothing else may run
beside rows 4 and 5. Studies and trainings that are finished already are only read.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from atoll.runs import read_json, runs_folder, write_json

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "measured.json"
STUDIES = ROOT / "recipes" / "studies"
SEEDS = (0, 1, 2)
HEAD = "| | one model | many | counted over | command |\n|---|---|---|---|---|"

Numbers = Mapping[str, Any]


class Row(NamedTuple):
    """A row: its words, and where its numbers come from."""

    what: str
    basis: str
    cells: Callable[[Numbers], tuple[str, str]]
    """The two columns of numbers."""
    measure: Callable[[str], Numbers]
    """All of it anew, with this source of the data."""


def with_interval(number: Numbers) -> str:
    return f"{number['value']:.1f} ± {number['interval']:.1f}"


def lower(change: float) -> str:
    return f"{-change:.0%} lower".replace("%", " %")


def from_a_start(found: Numbers) -> tuple[str, str]:
    best = found["best monolith"]
    one = f"{with_interval(found['monolith'])} (batch 8)"
    seeds = "one seed" if best["seeds"] == 1 else f"{best['seeds']} seeds"
    against = f"the best that one model reached, {best['value']:.1f} with batch {best['batch']}, {seeds}"
    both = f"{lower(found['change'])}; {lower(found['change from the best'])} than {against}"
    return one, f"**{with_interval(found['experts'])}** ({both})"


def by_the_rule(found: Numbers) -> tuple[str, str]:
    many = f"**{with_interval(found['experts'])}** ({lower(found['change'])})"
    return f"{with_interval(found['monolith'])} (batch 32)", many


def student(found: Numbers) -> tuple[str, str]:
    many = f"**{found['student']:.1f}** in fifty steps, {found['few-step, 4']:.1f} in four"
    return f"{found['monolith']:.1f} (batch 32)", many


def sampling(found: Numbers) -> tuple[str, str]:
    said = [
        f"{times['ancestral']:.2f} and {times['top-1']:.2f} ({num} samples)" for num, times in found.items()
    ]
    return "1", ", ".join(said)


def on_ray(found: Numbers) -> tuple[str, str]:
    return "1", f"{found['ray']:.2f}"


def study(name: str, data: str, *changes: str) -> dict[str, Any]:
    """The lines of a study's table, the monolith's first."""
    sets = [part for text in (f"data.source={data}", *changes) for part in ("--set", text)]
    run("atoll", "study", str(STUDIES / f"{name}.toml"), *(sets if data else sets[2:]))
    label = next((text.partition("=")[2] for text in changes if text.startswith("name=")), name)
    lines = read_json(runs_folder() / "studies" / label / "study.json")["lines"]
    one, many = sorted(lines, key=lambda line: not line["monolith"])[:2]
    return {
        **{
            name: {"value": line["distance"]["value"], "interval": half_width(line["distance"])}
            for name, line in (("monolith", one), ("experts", many))
        },
        "change": many["change"]["value"],
        "seeds": many["seeds"],
    }


def half_width(measured: Numbers) -> float:
    return float(measured["high"] - measured["low"]) / 2


def measure_start(data: str) -> Numbers:
    """Experts from a common start, beside a monolith with a batch of 8, and beside one with 4."""
    eight = study("start", data)
    four = study("start", data, "name=start-batch-4", "monolith.expert.batch=4")
    best = {"value": four["monolith"]["value"], "batch": 4, "seeds": four["seeds"]}
    return {**eight, "best monolith": best, "change from the best": four["change"]}


def measure_rule(data: str) -> Numbers:
    return study("headline", data)


def measure_student(data: str) -> Numbers:
    for seed in SEEDS:
        given = ["--data", data] if data else []
        run("benchmarks.studies.students", "--seed", str(seed), *given)
    each = [read_json(Path("studies") / f"students-{seed}.json")["frechet"] for seed in SEEDS]
    names = {
        "monolith": "monolith",
        "student": "student at as much",
        "few-step, 4": "few-step after trajectories only, 4",
    }
    return {name: sum(one[key] for one in each) / len(each) for name, key in names.items()}


def measure_sampling(data: str) -> Numbers:
    ratios = json.loads(run("benchmarks.sample", "--json"))["ratios"]
    return {
        num: {
            name: 1 / ratios[f"one model, {name} from eight, {num} samples"]
            for name in ("ancestral", "top-1")
        }
        for num in ("64", "512")
    }


def measure_ray(data: str) -> Numbers:
    ratios = json.loads(run("benchmarks.scale", "--only", "overhead", "--json"))["ratios"]
    return {"ray": 1 / next(iter(ratios.values()))}


def run(module: str, *arguments: str) -> str:
    """What a program of ours prints."""
    command = [sys.executable, "-m", module, *arguments]
    print(" ".join(command), file=sys.stderr)
    return subprocess.run(
        command, cwd=Path.cwd(), env=os.environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


ROWS = (
    Row(
        "Fréchet distance, eight experts from a common start",
        "3,000 samples of each of 3 seeds; equal training FLOPs",
        from_a_start,
        measure_start,
    ),
    Row(
        "the same by the DDM paper's rule, from nothing",
        "3,000 samples of each of 3 seeds; equal training FLOPs",
        by_the_rule,
        measure_rule,
    ),
    Row(
        "the same of one student of eight experts",
        "1,000 samples of each of 3 seeds; the monolith's FLOPs are spent on distilling",
        student,
        measure_student,
    ),
    Row(
        "time of a sample, eight experts, ancestral and top-1",
        "64 samples in 50 steps, 512 in 4; random weights, best of 3",
        sampling,
        measure_sampling,
    ),
    Row(
        "time of four experts by Ray, plain processes being 1",
        "400 steps each, two at a time, best of 2",
        on_ray,
        measure_ray,
    ),
)


def printed(number: int, found: Numbers) -> str:
    """A row as the README has it; rows count from 1."""
    row = ROWS[number - 1]
    return f"| {row.what} | {' | '.join(row.cells(found))} | {row.basis} | `--row {number}` |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", type=int, choices=range(1, len(ROWS) + 1), help="by default all of them")
    parser.add_argument("--rerun", action="store_true", help="measure again, and write it down")
    parser.add_argument("--data", default="", help="another copy of Fashion-MNIST than the studies name")
    parser.add_argument("--json", action="store_true", help="the numbers behind the rows")
    options = parser.parse_args()
    stored = read_json(STORED)
    numbers = [options.row] if options.row else list(range(1, len(ROWS) + 1))
    for number in numbers if options.rerun else []:
        stored[number - 1] = ROWS[number - 1].measure(options.data)
        write_json(STORED, stored)
    if options.json:
        detail = {ROWS[number - 1].what: stored[number - 1] for number in numbers}
        print(json.dumps({"benchmark": "readme", "ratios": {}, "detail": detail}))
        return
    print(
        "\n".join(
            ([] if options.row else [HEAD]) + [printed(number, stored[number - 1]) for number in numbers]
        )
    )


if __name__ == "__main__":
    main()
