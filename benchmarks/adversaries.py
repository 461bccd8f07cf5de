"""Who cheats, how soon that is seen, what it brings, and how often honest work is taken for a cheat.

The adversary kit of the tests at full size: bands between numerics classes are measured, every cheat is made
in several trainings and replayed in every interval, and careers of accounts are dealt out by the policy.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.net import adversaries as kit

from atoll.net.verification import bands, policy
from benchmarks import _liars
from benchmarks._shown import show

RUNS = 200
"""Careers of each kind: as many runs as the model has to stay clean in."""
CALIBRATION = 4
"""Trainings from which bands are made; all others are held to them."""


def proportion(count: int, total: int) -> dict[str, float]:
    """A share with Wilson's interval of 95 %."""
    z, share = 1.96, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return {"value": share, "low": max(0.0, middle - half), "high": min(1.0, middle + half), "num": total}


def mean(values: Sequence[float]) -> dict[str, float]:
    """A mean with 1.96 standard errors."""
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return {"value": middle, "low": middle - half, "high": middle + half, "num": len(values)}


def classes(compiled: bool) -> dict[str, kit.Numerics]:
    """Numerics classes that are compared with the usual one, by the name of the pair."""
    others = [
        kit.Numerics(threads=2),
        kit.Numerics(micro_batch=8),
        kit.Numerics("bfloat16"),
        kit.Numerics("bfloat16", threads=2),
    ]
    if compiled:
        others += [kit.Numerics(compiled=True), kit.Numerics("bfloat16", compiled=True)]
    return {bands.pair(kit.USUAL.name, other.name): other for other in others}


def measured_pair(other: kit.Numerics, seeds: int, first: int = 100) -> tuple[bands.Band, dict[str, Any]]:
    """The band of the usual class and another, and how many honest intervals of other trainings fall out.

    A compiled class has fewer trainings, which are longer: what costs there is to compile.
    """
    longer = 8 if other.compiled else 1
    count = max(CALIBRATION, seeds // longer)
    long = kit.SEGMENTS * longer
    small = [kit.World(seed=first + seed, segments=long) for seed in range(count)]
    wide = [
        kit.World(seed=first + 900 + seed, width=96, batch=64) for seed in range(min(4, max(2, count // 8)))
    ]
    groups = [
        list(kit.streamed(world, number % kit.CLUSTERS, other))
        for number, world in enumerate([*small, *wide])
    ]
    chosen = [*groups[: CALIBRATION - 1], groups[-1]]
    rest = [one for group in groups[CALIBRATION - 1 : -1] for one in group]
    band = bands.calibrate([one for group in chosen for one in group])
    judgements = [bands.judge(one, band, same_class=False) for one in rest]
    models = [one.kinds["model"] for one in rest]
    return band, {
        "trainings": len(groups) - CALIBRATION,
        "intervals": len(rest),
        "bit_equal": sum(one.equal for one in rest) / len(rest),
        "largest_relative": max(one.relative for one in models),
        "largest_plain": max(one.plain for one in models),
        "smallest_cosine": min(one.cosine for one in models),
        "band_relative": band.limits["model"].relative,
        "band_worst_tensor": band.limits["model"].worst,
        "usable": band.usable,
        "false_alarms": proportion(judgements.count("differs"), len(judgements)),
        "false_alarms_at_most": exact(judgements.count("differs"), len(judgements)),
        "inconclusive": proportion(judgements.count("inconclusive"), len(judgements)),
    }


def alarms(seeds: int, compiled: bool, first: int) -> dict[str, Any]:
    """How often honest work of every pair of classes is taken for a cheat, and what that bounds."""
    torch.set_num_threads(1)
    since = time.perf_counter()
    _, numerics = measured_bands(seeds, compiled, first)
    total = sum(one["intervals"] for one in numerics.values())
    found = sum(round(one["false_alarms"]["value"] * one["intervals"]) for one in numerics.values())
    return {
        "benchmark": "adversaries",
        "ratios": {},
        "detail": {
            "numerics": numerics,
            "intervals": total,
            "false_alarms": found,
            "at_most": exact(found, total),
            "seconds": time.perf_counter() - since,
        },
    }


def careers_in_runs(runs: int, release: float, rows: Path | None = None) -> dict[str, Any]:
    """Liars in as many runs of a real coordinator: whose models are poisoned, and what lying brought.

    One run of every kind, then the next of every kind; `rows` keeps what was made, and is gone on from.
    """
    rules = policy.AuditPolicy(release=release)
    made = [] if rows is None or not rows.is_file() else [json.loads(line) for line in rows.open()]
    known = {(one["scheme"], one["seed"], one["release"]) for one in made}
    for seed, (name, scheme) in itertools.product(range(runs), _liars.SCHEMES.items()):
        if (name, seed, release) in known:
            continue
        since = time.process_time()
        row = {"scheme": name, "seed": seed, "release": release, **_liars.career(scheme, rules, seed)}
        made.append(row | {"seconds": time.process_time() - since})
        if rows is not None:
            with rows.open("a") as file:
                file.write(json.dumps(made[-1]) + "\n")
    kept = [one for one in made if one["release"] == release and one["seed"] < runs]
    table = {name: _line([one for one in kept if one["scheme"] == name]) for name in _liars.SCHEMES}
    false = [one for one in kept if one["lies"]]
    detail = {
        "release": release,
        "schemes": table,
        "poisoned": sum(one["poisoned"] for one in false),
        "runs_with_lies": len(false),
        "poisoned_at_most": exact(sum(one["poisoned"] for one in false), len(false)),
        "cpu_seconds": sum(one["seconds"] for one in kept),
    }
    return {"benchmark": "adversaries", "ratios": {}, "detail": detail}


def _line(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What became of all runs with one kind of liar."""
    means = ("lies", "handed_in", "refused", "banned", "wronged", "hard")
    return {
        "runs": len(rows),
        "poisoned_models": sum(one["poisoned"] for one in rows),
        **{name: statistics.fmean(one[name] for one in rows) for name in means},
        "profit": mean([one["profit"] for one in rows]),
    }


def exact(count: int, total: int, sure: float = 0.95) -> float:
    """The largest share that is not ruled out with this certainty, one-sided (Clopper and Pearson)."""
    low, high = count / total, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = (
            math.exp(
                math.lgamma(total + 1)
                - math.lgamma(k + 1)
                - math.lgamma(total - k + 1)
                + k * math.log(middle)
                + (total - k) * math.log1p(-middle)
            )
            for k in range(count + 1)
        )
        low, high = (middle, high) if sum(terms) > 1 - sure else (low, middle)
    return high


def measured_bands(seeds: int, compiled: bool, first: int = 100) -> tuple[bands.Bands, dict[str, Any]]:
    """Bands of all pairs of classes, and what was measured of each."""
    both = {}
    for name, other in classes(compiled).items():
        both[name] = measured_pair(other, seeds, first)
        print(name, json.dumps(both[name][1]), file=sys.stderr, flush=True)
    return bands.Bands(pairs={name: one[0] for name, one in both.items()}), {
        name: one[1] for name, one in both.items()
    }


def cheats(worlds: Sequence[kit.World], band: bands.Band) -> dict[str, list[kit.Checks]]:
    """What the checks say of every cheat, in several trainings and segments."""
    rows: dict[str, list[kit.Checks]] = {}
    for number, world in enumerate(worlds):
        cluster = number % kit.CLUSTERS
        for segment in (2, 4):
            known = kit.known(world, cluster, segment)
            attacks = {"honest": kit.honest, **kit.ATTACKS, "one interval only": kit.one_interval}
            for name, attack in attacks.items():
                checks = kit.checked(world, cluster, segment, attack, band, known)
                rows.setdefault(name, []).append(checks)
    return rows


def careers(checks: Sequence[kit.Checks], rules: policy.AuditPolicy, **scheme: Any) -> list[kit.Career]:
    """As many runs as are asked for, cheating as in one of the segments that were made."""
    name = f"{sorted(scheme.items())}"
    return [
        kit.career(kit.Scheme(checks[seed % len(checks)], **scheme), rules, f"{name}/{seed}")
        for seed in range(RUNS)
    ]


def outcome(runs: Sequence[kit.Career], rules: policy.AuditPolicy) -> dict[str, Any]:
    """What became of them."""
    return {
        "found_out": proportion(sum(one.caught is not None for one in runs), len(runs)),
        "units_until_then": statistics.fmean(one.caught for one in runs if one.caught is not None),
        "credit_taken": statistics.fmean(one.vested for one in runs),
        "profit": mean([one.profit for one in runs]),
        "poisoned_models": sum(bool(kit.in_the_model(one, rules)) for one in runs),
    }


def row(checks: Sequence[kit.Checks], rules: policy.AuditPolicy) -> dict[str, Any]:
    """One line of the table."""
    judgements = [one for each in checks for one in each.judgements]
    relative = [one for each in checks for one in each.relative if one < 1e8]
    cosine = [one for each in checks for one in each.cosine]
    return {
        "relative": [min(relative), max(relative)] if relative else None,
        "largest_cosine": max(cosine),
        "seen_by_admission_or_gate": sum(bool(each.faults or each.doubts) for each in checks) / len(checks),
        "doubts": sorted({name for each in checks for name in each.doubts}),
        "seen_by_a_replay": proportion(judgements.count("differs"), len(judgements)),
        "newcomer": outcome(careers(checks, rules), rules),
        "trusted": outcome(careers(checks, rules, trusted=True), rules),
    }


def network(rules: policy.AuditPolicy) -> dict[str, Any]:
    """Cheats of the network rather than of the work, with false work that only a replay sees."""
    bad = [kit.Checks({}, {}, ("differs",) * kit.INTERVALS, spent=0.0)]
    canaries = [
        next(n for n in range(10_000) if policy.is_canary(rules, n.to_bytes(8, "big"), f"{seed}")) + 1
        for seed in range(RUNS)
    ]
    at_once = {
        f"{share:.0%} of auditors are friends": outcome(
            careers(bad, rules, trusted=True, friends=share), rules
        )
        for share in (0.2, 0.4)
    }
    once = careers(bad, rules, trusted=True, units=1)
    return {
        **at_once,
        "one false unit, then away": outcome(once, rules),
        "auditor who never looks": {"units_until_canary": statistics.fmean(canaries)},
    }


def releases(rules: policy.AuditPolicy) -> dict[str, Any]:
    """How often one poisoned interval of eight is in a model, by the share of segments replayed whole."""
    one = [
        kit.Checks({}, {}, tuple("differs" if i == k else "agrees" for i in range(kit.INTERVALS)))
        for k in range(8)
    ]
    table = {}
    for share in (0.0, 0.5, 0.9, 1.0):
        policed = rules.model_copy(update={"release": share})
        runs = careers(one, policed, trusted=True, units=8)
        steps = sum(len(each.segments) for each in runs) * kit.INTERVALS
        table[str(share)] = {
            "poisoned_models": sum(bool(kit.in_the_model(each, policed)) for each in runs),
            "of": len(runs),
            "replayed_over_trained": sum(each.replayed for each in runs) / steps,
        }
    return table


def measured(seeds: int, compiled: bool) -> dict[str, Any]:
    """All of it."""
    torch.set_num_threads(1)
    rules, since = policy.AuditPolicy(), time.perf_counter()
    table, numerics = measured_bands(seeds, compiled)
    rounding = table.pairs[bands.pair(kit.USUAL.name, kit.Numerics(micro_batch=8).name)]
    rows = cheats([kit.World(seed=seed) for seed in range(3)], rounding)
    whole = [one for name in kit.ATTACKS for each in rows[name] for one in each.relative]
    mixed = numerics[bands.pair(kit.USUAL.name, kit.Numerics("bfloat16").name)]
    nearest = min(
        one
        for name in kit.ATTACKS
        if name != "lower precision"
        for each in rows[name]
        for one in each.relative
    )
    return {
        "benchmark": "adversaries",
        "ratios": {
            "nearest cheat over the band within a class": min(whole) / rounding.limits["model"].relative,
            "nearest cheat of one precision over the band to another": nearest / mixed["band_relative"],
            "float32 beside bfloat16: plain updates over weighed ones": mixed["largest_plain"]
            / mixed["largest_relative"],
            "2 % over the share of work replayed at the floor": 0.02 / policy.overhead(rules, kit.INTERVALS),
        },
        "detail": {
            "policy": {
                **rules.model_dump(),
                "escrow_units": policy.escrow_units(rules),
                "overhead": {n: policy.overhead(rules, n) for n in (1, 8, 50)},
            },
            "numerics": numerics,
            "bands": {name: band.model_dump() for name, band in table.pairs.items()},
            "honest_segments_doubted": sum(bool(each.doubts) for each in rows["honest"])
            / len(rows["honest"]),
            "cheats": {name: row(each, rules) for name, each in rows.items() if name != "honest"},
            "network": network(rules),
            "releases": releases(rules),
            "seconds": time.perf_counter() - since,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=24, help="trainings on which bands are measured")
    parser.add_argument("--first", type=int, default=100, help="the first of their seeds")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled classes out")
    parser.add_argument(
        "--only",
        choices=("alarms", "coordinator"),
        help="honest work of several classes and no cheat; or liars in runs of a real coordinator",
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="runs for each kind of liar")
    parser.add_argument("--release", type=float, default=1.0, help="share replayed as a whole before the end")
    parser.add_argument("--rows", type=Path, help="keeps runs of the coordinator, and is gone on from")
    arguments = parser.parse_args()
    if arguments.only == "coordinator":
        show(careers_in_runs(arguments.runs, arguments.release, arguments.rows), arguments.json)
        return
    if arguments.only == "alarms":
        show(alarms(arguments.seeds, not arguments.no_compile, arguments.first), arguments.json)
        return
    show(measured(arguments.seeds, not arguments.no_compile), arguments.json)


if __name__ == "__main__":
    main()
