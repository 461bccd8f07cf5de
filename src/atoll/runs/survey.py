"""What of a run is done, what is left, what was made from other inputs than today's; read off its records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.runs import graph
from atoll.runs.graph import Node
from atoll.runs.run import Run


@dataclass(frozen=True)
class Survey:
    """The stages of a run by what is to become of them, each after those that it reads."""

    done: list[Node]
    stale: list[Node]
    """Made from other inputs than today's, or from a stage that was."""
    left: list[Node]
    why: Mapping[str, str]
    """Of each stale stage, in words."""


def survey(run: Run) -> Survey:
    """Look at every stage of a run."""
    state: dict[str, str] = {}
    why: dict[str, str] = {}
    nodes = graph.made(run)
    for node in nodes:
        state[node.name] = _state(node, state, why)

    def of(wanted: str) -> list[Node]:
        return [node for node in nodes if state[node.name] == wanted]

    return Survey(of("done"), of("stale"), of("left"), why)


def _state(node: Node, state: Mapping[str, str], why: dict[str, str]) -> str:
    before = {one.name: state[one.name] for one in node.inputs}
    begun = _begun_from(node)
    if begun is None or (node.kind.mends and not node.stage.done):
        return "left"
    renewed = [name for name, known in before.items() if known == "stale"]
    if renewed:
        why[node.name] = f"{node.stage.path} was made from {renewed[0]}, which is made again"
        return "stale"
    if "left" in before.values():  # only then can it be told
        return "left"
    today = node.made_from()
    if begun != today:
        changed = sorted(key for key in {*begun, *today} if begun.get(key) != today.get(key))
        why[node.name] = f"{node.stage.path} was made with other {', '.join(changed)}"
        return "stale"
    return "done" if node.stage.done else "left"


def _begun_from(node: Node) -> dict[str, Any] | None:
    """What a stage was made from, or is being made from; None if it was never begun."""
    return dict(node.stage.record.made_from) if node.stage.done else node.stage.started
