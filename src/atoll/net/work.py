"""One unit done in a folder: what it reads lies there, and what it makes will; nothing else is looked at.

`python -m atoll.net.work UNIT.json RESOLVED FOLDER`: the hashes of a training's states go to `chain.json`
beside UNIT.json as they come. Exit code 0: done; 75: asked to stop and saved; 1: failed, in one line.
"""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atoll import exits
from atoll.errors import Interrupted, RunError
from atoll.net import units
from atoll.net.protocol import File, Numerics, Unit, parse
from atoll.net.publishing import located
from atoll.net.shelves import folder_of, is_source
from atoll.net.tracing import TRACES
from atoll.net.units import Cut, Share, cut_file, described, marker, parse_shares
from atoll.net.verification import asking
from atoll.runs import DONE, Run, Stage, file_digest, graph, read_json, write_json
from atoll.runs.graph import Node, resolve
from atoll.storage.progress import LATEST, STATE, step_here

CHAIN = "chain.json"
"""Beside a unit: the hashes of its states by step."""
KEPT = "states"
"""There too: the states of a training, if there is room for all of them, to be shown if asked for."""
ROOM = 4 << 30
"""Bytes that they may have."""
MADE = "made.json"
"""There too, once it is done: what it has changed in the folder, and in which arithmetic."""
Links = dict[int, str]
"""Hashes of states by their steps."""


def work(unit: Unit, run: Run, chain: Path) -> None:
    """Do a unit, or go on with it; `Interrupted` where it was asked to stop before its end."""
    node = graph.node(run, unit.stage)
    WAYS[unit.role](node, unit, chain)


def _train(node: Node, unit: Unit, chain: Path, noted: Callable[[int], None] = lambda step: None) -> None:
    """A segment of a training; the one that ends with the training finishes the stage as well."""
    links, traces = read_chain(chain), read_chain(chain.with_name(TRACES))

    def traced(step: int, sha256: str) -> None:
        traces[step] = sha256
        write_json(chain.with_name(TRACES), {str(number): one for number, one in sorted(traces.items())})

    def saved(step: int, sha256: str) -> None:
        links[step] = sha256
        if unit.role == "train":
            _keep(node.stage.path / STATE / asking.state_name(step), chain.with_name(KEPT), unit)
        write_json(chain, {str(number): link for number, link in sorted(links.items())})
        noted(step)

    _go_on_from_newest(node.stage)
    if step_here(node.stage) >= 0:
        saved(step_here(node.stage), str(read_json(node.stage.path / STATE / LATEST)["sha256"]))
    segment = resolve("atoll.train.segment:Segment")(node.stage.path, unit.last, unit.every, saved, traced)
    with resolve("atoll.train.segment:only")(segment):
        try:
            node.make()
        except Interrupted:
            if step_here(node.stage) < unit.last:
                raise


def _keep(state: Path, folder: Path, unit: Unit) -> None:
    """A second name for a state, which the training will drop."""
    points = len(range(unit.first, unit.last, max(1, unit.every))) + 1
    if state.is_file() and state.stat().st_size * points <= ROOM:
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # where there are no second names, all of a segment is replayed
            os.link(state, folder / state.name)


def _audit(node: Node, unit: Unit, chain: Path) -> None:
    """The steps of another's interval once more, and a report of them beside what it committed to."""
    copies = {unit.first: asking.BEFORE, unit.last: asking.REPLAYED}

    def noted(step: int) -> None:
        if step in copies:
            target = node.run.path / copies[step]
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(node.stage.path / STATE / asking.state_name(step), target)

    _train(node, unit, chain, noted)
    resolve("atoll.net.verification.replay:report")(node.run.path, unit)


def _go_on_from_newest(stage: Stage) -> None:
    """Point to the newest state that is there: it may have come without a pointer, from another machine."""
    states = sorted((stage.path / STATE).glob("step-*.safetensors"))
    if states and (step := int(states[-1].stem.removeprefix("step-"))) != step_here(stage):
        entry = {"step": step, "file": states[-1].name, "sha256": file_digest(states[-1])}
        write_json(stage.path / STATE / LATEST, {**entry, "older": []})


def _cut(node: Node, unit: Unit, chain: Path) -> None:
    """Open a stage and find out its shares, each with the files that it needs."""
    parts = resolve(node.kind.parts)(node.run)
    missing: Sequence[Any] = parts.missing()
    if len(missing) <= 1:  # it is done as quickly at once
        node.make()
        return
    cut = Cut(shares=tuple(Share(share=one, inputs=tuple(_needed(node, parts, one))) for one in missing))
    write_json(node.run.path / cut_file(node), cut.model_dump(mode="json"))


def _needed(node: Node, parts: Any, share: Any) -> Iterator[str]:
    for one in node.reads:
        names = [name for name in one.stage.record.files if parts.needed(share)(name)]
        yield from (f"{folder_of(one)}/{name}" for name in (*names, DONE))
    table = units.table_of(node.run)
    for path in table:
        own = path.removeprefix(f"{folder_of(node)}/")
        if own != path and parts.progress(share)(own):
            yield path
    for file in parts.outside(share) or ():
        if file.is_relative_to(node.run.path):
            yield file.relative_to(node.run.path).as_posix()


def _share(node: Node, unit: Unit, chain: Path) -> None:
    """One share of a stage, and the sign that it is there."""
    shares = parse_shares((node.run.path / cut_file(node)).read_bytes())
    number, share = next((number, one) for number, one in enumerate(shares) if one.share == unit.share)
    partial = any(is_source(path) for path in share.inputs)
    resolve(node.kind.parts)(node.run, partial=partial).make(unit.share)
    write_json(node.run.path / marker(node, number), {"share": unit.share})


def _whole(node: Node, unit: Unit, chain: Path) -> None:
    node.make()


WAYS: dict[str, Callable[[Node, Unit, Path], None]] = {
    "train": _train,
    "audit": _audit,
    "cut": _cut,
    "encode": _share,
    "draw": _whole,
    "evaluate": _whole,
    "whole": _whole,
}
"""How units of each role are done."""


def read_chain(path: Path) -> Links:
    """The hashes so far."""
    return {int(step): str(link) for step, link in read_json(path).items()} if path.is_file() else {}


def links_of(unit: Unit, chain: Links) -> tuple[str, ...]:
    """The chain of a unit as far as it goes without a gap: at its first step, then at every m-th."""
    steps = [*range(unit.first, unit.last, unit.every), unit.last] if unit.every else []
    links: list[str] = []
    for step in steps:
        if step not in chain:
            break
        links.append(chain[step])
    return tuple(links)


def made_files(unit: Unit, run: Run) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """What a unit has changed in a folder: files that are new or changed, and names that are gone."""
    if unit.role == "audit":  # what it trained is nobody's; the report is what was asked for
        report = described(run.path / asking.REPORT, run.path)
        return (() if report is None else (report,)), ()
    node = graph.node(run, unit.stage)
    before = {file.path: file for file in unit.inputs}
    after = {
        file.path: file
        for folder in (node.stage.path, run.path / units.UNITS)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (file := described(path, run.path)) is not None
    }
    outputs = tuple(file for path, file in after.items() if before.get(path) != file)
    gone = [path for path in before if path.startswith(f"{folder_of(node)}/") and path not in after]
    return outputs, tuple(sorted(gone))


def numerics(unit: Unit, run: Run) -> Numerics:
    """The class of arithmetic in which this process does a unit."""
    training = graph.node(run, unit.stage).training
    if training is None:
        return arithmetic_here()
    named = {
        "precision": training.precision,
        "compiled": training.compile == "on",
        "micro_batch": training.micro_batch or 0,
    }
    return arithmetic_here().model_copy(update=named)


def arithmetic_here() -> Numerics:
    """What of it this process and its machine decide."""
    torch = importlib.import_module("torch")  # a coordinator has none
    device = resolve("atoll.devices:best")()
    cuda = device.type == "cuda"
    return Numerics(
        device=resolve("atoll.train.hardware:describe")(device),
        torch=str(torch.__version__),
        precision="float32",
        threads=torch.get_num_threads(),
        capability=".".join(map(str, torch.cuda.get_device_capability(device)))
        if cuda
        else torch.backends.cpu.get_cpu_capability(),
    )


def perform(place: Path, resolved: Path, folder: Path) -> None:
    """Do the unit that a file holds, and write beside it what was made of it."""
    unit = parse(Unit, place.read_bytes())
    run = Run(folder, located(resolve("atoll.launch.job:read_settings")(resolved), folder))
    chain = place.with_name(CHAIN)
    work(unit, run, chain)
    outputs, removed = made_files(unit, run)
    if unit.role in ("train", "audit") and not links_of(unit, read_chain(chain))[-1:]:
        raise RunError(f"{unit.name}: nothing was trained")
    facts = {"outputs": [file.model_dump(mode="json") for file in outputs], "removed": list(removed)}
    write_json(place.with_name(MADE), {**facts, "numerics": numerics(unit, run).model_dump(mode="json")})


def main() -> None:
    """Be the process that does one unit."""
    perform(*map(Path, sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(exits.exit_code(main))
