"""How large units are, what they are worth, and what a machine fetches for one: as the plan counts."""

import contextlib
import json
from typing import Any

from atoll import plan
from atoll.config import Facts, RunConfig
from atoll.errors import ConfigError
from atoll.net.protocol import Manifest
from atoll.net.units import Sizes
from atoll.runs import DONE, graph
from atoll.runs.known import known
from atoll.runs.records import SamplesContents, parse_record

STATE = 4 * 4
"""Bytes of a training's state for a parameter: weights, their average and two moments in float32."""

UNKNOWN = 1e12
"""FLOPs of a unit of which the plan counts none; never more than the shortest training has."""


def every(config: RunConfig) -> int:
    """Steps between two hashes of a state, where nobody says: a hundredth of the longest training."""
    return max(1, min(100, _longest(config) // 100))


def sizes(config: RunConfig, manifest: Manifest, quorum: int, facts: Facts) -> Sizes:
    """Of the units of a published run."""
    jobs: dict[str, Any] = _planned(config, facts).get("jobs", {})
    flops = {name: float(job["flops"]) for name, job in jobs.items()}
    return Sizes(
        run=manifest.digest,
        segment=-(-_longest(config) // manifest.every) * manifest.every,
        every=manifest.every,
        price=manifest.price,
        flops=flops,
        unknown=min([UNKNOWN, *flops.values()]),
        memory={name: int(job["memory_bytes"]["total"]) for name, job in jobs.items()},
        states={name: STATE * int(job["parameters"]) for name, job in jobs.items()},
        quorum=quorum,
    )


def facts_of(record: bytes) -> Facts:
    """What is known once samples are at rest."""
    contents = parse_record(json.loads(record), DONE).contents
    return known(contents) if isinstance(contents, SamplesContents) else Facts()


def download(config: RunConfig, facts: Facts) -> int:
    """Bytes that a machine fetches for one training, samples and a state; 0 where nobody knows them yet."""
    tree = _planned(config, facts)
    if not tree or tree["data"]["bytes_of_a_cluster"] is None:
        return 0
    largest = max((int(job["parameters"]) for job in tree["jobs"].values()), default=0)
    return round(float(tree["data"]["bytes_of_a_cluster"]) + STATE * largest)


def _planned(config: RunConfig, facts: Facts) -> dict[str, Any]:
    """What the plan counts, for some GPU: FLOPs and bytes are the same on each; nothing without shapes."""
    tree = config.plan.model_copy(update={"gpu": "A100-80GB"})
    with contextlib.suppress(ConfigError):  # nobody knows the shape of samples before there are any
        return plan.plan(config.model_copy(update={"plan": tree}), facts)
    return {}


def _longest(config: RunConfig) -> int:
    """Steps of the longest training."""
    return max((one.steps for one in graph.trainings(config).values()), default=1)
