"""What is made of finished networks to be looked at, samples, measurements and a page: from what each is."""

from typing import Any

from atoll.config import settings_digest
from atoll.runs import edges, graph
from atoll.runs.components import Members
from atoll.runs.files import digest
from atoll.runs.run import Run


def samples_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What a run's samples are made from: the networks that draw them, and how they are asked."""
    networks = [graph.node(run, name).stage.digest for name in edges.of_samples(run.config, 0)]
    members = run.members
    if members != Members():
        networks.append(digest(members.model_dump(mode="json", exclude_defaults=True)))
    return {"sample": settings_digest(run.config.sample), "networks": digest(networks)}


def evaluation_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What a run's measurements are made from: what its samples are, and what they are compared with."""
    real = {"data": run.data.digest, "partition": run.partition.digest}
    return {**samples_from(run), **real, "evaluate": settings_digest(run.config.evaluate)}


def report_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the page is made from."""
    shown = [graph.node(run, name).stage.digest for name in edges.of_report(run.config, 0)]
    return {"shown": digest(shown), "partition": run.partition.digest}
