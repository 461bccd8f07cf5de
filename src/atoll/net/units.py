"""The graph of stages cut into units: what can be worked on now, read off a table of files and nothing else.

No stage is known by name here. A training is cut into segments of steps, a stage that says how it is cut into
its shares, anything else is one unit. A table of files says how far a run is: it holds what a run's folder
would, since every unit is a function from files to files.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from atoll.errors import RunError
from atoll.net.protocol import MOST_FILES, File, Message, Name, Role, Unit, Word, parse
from atoll.net.shelves import SOURCE, Shelves, Table, folder_of, is_source
from atoll.runs import DONE, Run, file_digest, graph
from atoll.runs.graph import Node

UNITS = "units"
"""The folder of a run in a network that says into what its stages were cut."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """How large units are, and what they are worth."""

    run: str
    """The digest of the run's manifest."""
    segment: int
    """Steps of a segment at most, a multiple of `every`."""
    every: int
    """Steps between two hashes of a training's state."""
    price: int = 0
    """Milli-credits per 10^12 FLOPs."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """Of whole trainings, by the names of stages, as the plan counts them."""
    unknown: float = 1e12
    """FLOPs that stand for a unit of which the plan counts none."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes that trainings need, as the plan counts them."""
    states: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the states of trainings."""
    quorum: int = 2
    """Accounts that must agree on whatever is not trained: shares of data, partitions, samples, reports."""


def ready(run: Run, table: Table, read: Callable[[File], bytes], sizes: Sizes) -> list[Unit]:
    """All units that can be worked on now; those that somebody works on already are among them."""
    done, shelves = finished_stages(run, table), Shelves(run, table)
    units: list[Unit] = []
    for node in stages(run):
        if node.name not in done and all(one.name in done for one in node.inputs):
            if node.kind.adopts:
                raise RunError(f"{node.name} comes from elsewhere; make it here first, by `atoll run`")
            units += _units(node, shelves, read, sizes)
    return units


def finished(run: Run, table: Table) -> bool:
    """Whether every stage that strangers make is there."""
    done = finished_stages(run, table)
    return all(node.name in done for node in stages(run))


def stages(run: Run) -> list[Node]:
    """What strangers make: everything but pages.

    Those tell of the machine that drew them, so that no two would agree on one, and a stranger's could do
    anything in a browser.
    """
    return [node for node in graph.made(run) if not node.kind.page]


def finished_stages(run: Run, table: Table) -> set[str]:
    """The names of stages of which the table has the record."""
    return {node.name for node in graph.nodes(run) if f"{folder_of(node)}/{DONE}" in table}


def _units(node: Node, shelves: Shelves, read: Callable[[File], bytes], sizes: Sizes) -> list[Unit]:
    training, table = node.training, shelves.table
    if training is not None and training.steps:
        return [_segment(node, shelves, training.steps, sizes)]
    if node.kind.parts:
        cut = table.get(cut_file(node))
        if cut is None:
            inputs = _inputs(node, shelves)
            return [_unit(node, table, sizes, role="cut", name=f"{node.name} / cut", inputs=inputs)]
        shares = parse_shares(read(cut))
        missing = [share for number, share in enumerate(shares) if marker(node, number) not in table]
        if missing:
            return [_share(node, share, shelves, sizes) for share in missing]
    draws: Role = "draw" if any(one.kind.network for one in node.reads) else "whole"
    role: Role = "evaluate" if node.kind.judges else draws
    return [_unit(node, table, sizes, role=role, name=node.name, inputs=_inputs(node, shelves))]


def cut_file(node: Node) -> str:
    """Says into which shares a stage was cut."""
    return f"{UNITS}/{node.kind.name}.json"


def marker(node: Node, number: int) -> str:
    """Says that a share of a stage is there."""
    return f"{UNITS}/{node.kind.name}/{number:05d}.json"


class Share(Message):
    """A part of a stage, and the files that it needs of what the stage reads and of what there is of it."""

    share: int | Word
    inputs: tuple[Name, ...] = Field((), max_length=MOST_FILES)


class Cut(Message):
    """All shares of a stage."""

    shares: tuple[Share, ...] = Field((), max_length=100_000)


@lru_cache(8)
def parse_shares(raw: bytes) -> tuple[Share, ...]:
    """What a cut says; a stranger's machine has written it."""
    return parse(Cut, raw).shares


def _segment(node: Node, shelves: Shelves, steps: int, sizes: Sizes) -> Unit:
    first, table = shelves.step(node), shelves.table
    last = min(first + sizes.segment, steps)
    flops = sizes.flops.get(node.name, 0.0) * (last - first) / steps
    unit = _unit(node, table, sizes, role="train", name="", inputs=_inputs(node, shelves), work=flops)
    memory = sizes.memory.get(node.name, 0)
    return _steps(unit.model_copy(update={"first": first, "every": sizes.every, "memory": memory}), last)


def _steps(unit: Unit, last: int) -> Unit:
    return unit.model_copy(update={"last": last, "name": f"{unit.stage} @ {unit.first}..{last}"})


def shortened(unit: Unit, steps: int) -> Unit:
    """The same segment with fewer steps, for a machine that would need too long for all of them."""
    taken = max(unit.every, steps // unit.every * unit.every)
    if unit.role != "train" or taken >= unit.last - unit.first:
        return unit
    share = taken / (unit.last - unit.first)
    less = {"work": unit.work * share, "price": math.ceil(unit.price * share)}
    return _steps(unit.model_copy(update=less), unit.first + taken)


def _share(node: Node, share: Share, shelves: Shelves, sizes: Sizes) -> Unit:
    table = shelves.table
    known = [path for path in share.inputs if path in table]
    chosen = any(map(is_source, known))  # it says what it needs, or needs all
    source = () if chosen else _source(node, shelves)
    inputs = (*known, cut_file(node), *source)
    files = tuple(table[path] for path in sorted(set(inputs)))
    return _one_share(node.name, node.training is not None or node.kind.gpu, share.share, files, sizes)


@lru_cache(1 << 16)
def _one_share(stage: str, gpu: bool, share: int | str, inputs: tuple[File, ...], sizes: Sizes) -> Unit:
    """The unit of a share; there are thousands, and whoever looks which are left asks for all of them."""
    return Unit(
        run=sizes.run,
        name=f"{stage} / {share}",
        stage=stage,
        role="encode",
        share=share,
        inputs=inputs,
        quorum=sizes.quorum,
        price=_price(sizes.unknown, sizes),
        work=sizes.unknown,
        gpu=gpu,
    )


def _price(amount: float, sizes: Sizes) -> int:
    """Milli-credits for so many FLOPs."""
    return max(1, round(amount / 1e12 * sizes.price)) if sizes.price else 0


def _unit(
    node: Node,
    table: Table,
    sizes: Sizes,
    *,
    role: Role,
    name: str,
    inputs: Iterable[str],
    work: float = 0.0,
) -> Unit:
    amount = work or sizes.unknown
    return Unit(
        run=sizes.run,
        name=name,
        stage=node.name,
        role=role,
        inputs=tuple(table[path] for path in sorted(set(inputs))),
        quorum=1 if role == "train" else sizes.quorum,  # trainings are replayed instead
        price=_price(amount, sizes),
        work=amount,
        gpu=node.training is not None or node.kind.gpu,
    )


def _inputs(node: Node, shelves: Shelves) -> Iterator[str]:
    """What a unit reads: what its stage reads, records of other stages, and what there is of itself."""
    for one in node.reads:
        yield from shelves.finished(one, shown=node.kind.again)
    for one in node.records:
        pictures = shelves.finished(one) if node.kind.again else ()
        yield from (path for path in pictures if not path.endswith(".parquet"))
        yield f"{folder_of(one)}/{DONE}"
    yield from _source(node, shelves)
    yield from shelves.all(node)


def _source(node: Node, shelves: Shelves) -> Iterator[str]:
    """What comes from outside is read by a stage that reads no other."""
    if not node.inputs:
        yield from shelves.source()


def folder(table: Table) -> dict[str, File]:
    """What a run's folder holds, as `atoll run` would have made it: without what networks need besides."""
    return {path: file for path, file in table.items() if not path.startswith((f"{UNITS}/", f"{SOURCE}/"))}


def table_of(run: Run) -> dict[str, File]:
    """What there is of a run's stages in its folder, finished or not."""
    paths = {path for node in graph.nodes(run) for path in node.stage.path.rglob("*") if path.is_file()}
    return {file.path: file for path in sorted(paths) if (file := described(path, run.path)) is not None}


def described(path: Path, folder: Path) -> File | None:
    """A file by its name in a folder and what is in it; None where it is hidden, or gone by now."""
    name = path.relative_to(folder)
    if any(part.startswith(".") for part in name.parts):
        return None
    with contextlib.suppress(FileNotFoundError):
        return File(path=name.as_posix(), sha256=file_digest(path), size=path.stat().st_size)
    return None
