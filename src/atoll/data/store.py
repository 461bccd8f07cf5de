"""Samples at rest: Parquet per cluster, hashes, resumable shuffled reading."""

import contextlib
import hashlib
import queue
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data import seal, text
from atoll.data.columns import as_array
from atoll.data.seal import sealed as sealed
from atoll.data.text import TextStates
from atoll.data.values import standardise
from atoll.data.values import to_pixels as to_pixels
from atoll.data.values import to_values as to_values
from atoll.errors import CorruptError, DataError, reason
from atoll.runs import Stage, file_digest, repair
from atoll.runs.records import ClusterContents

GROUP = 500
"""Rows of a Parquet row group, which is what is read at once; fewer where rows are large."""
GROUP_BYTES = 32 * 2**20
MEMORY = 256 * 2**20
"""Bytes of samples that a reader holds in memory at once."""
AHEAD_BYTES = 64 * 2**20
"""Of batches that are made ready before they are asked for: at least 2 and at most 32 of them."""

TEXT_COLUMNS = ("tokens", "pooled")


def group_rows(row_bytes: int) -> int:
    """Rows of a row group, for rows of this size."""
    return min(GROUP, max(1, GROUP_BYTES // max(1, row_bytes)))


def cluster_schema(sample_bytes: int, *, with_text: bool) -> pa.Schema:
    """The columns of a cluster's files."""
    fields = [
        pa.field("id", pa.binary(32)),
        pa.field("sample", pa.binary(sample_bytes)),
        pa.field("label", pa.int64()),
        pa.field("caption", pa.string()),
        *(pa.field(name, pa.binary()) for name in TEXT_COLUMNS if with_text),
        pa.field("sha256", pa.binary(32)),
    ]
    return pa.schema(fields)


def row_digest(row: Mapping[str, Any]) -> bytes:
    """The sha256 of one row: the sample and all that is said about it, each with its length before it."""
    state = hashlib.sha256()
    for name in ("sample", "label", "caption", *TEXT_COLUMNS):
        value = row.get(name)
        raw = value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
        state.update(f"{name} {-1 if value is None else len(raw)} ".encode())
        state.update(raw)
    return state.digest()


def write_cluster_file(path: Path, table: pa.Table, group: int) -> None:
    """Write rows with their hashes; equal rows give equal bytes."""
    names = [name for name in table.column_names if name != "id"]
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    hashes = [row_digest(dict(zip(names, row, strict=True))) for row in rows]
    table = table.append_column(pa.field("sha256", pa.binary(32)), pa.array(hashes, pa.binary(32)))
    pq.write_table(table, path, row_group_size=group, compression="zstd", use_dictionary=False)


def open_parquet(stage: Stage, name: str, expected: str | None = None) -> pq.ParquetFile:
    """The one door to samples at rest: the seal is checked and, where a digest is given, the contents."""
    seal.check(stage.path)
    path = stage.path / name
    advice = repair.advice(stage.path)
    if not path.is_file():
        raise CorruptError(f"{path} is missing; {advice}")
    if expected is not None and file_digest(path) != expected:
        raise CorruptError(f"{path} is damaged (sha256 differs); {advice}")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{path} cannot be read ({reason(error)}); {advice}") from None


@dataclass(frozen=True)
class Batch:
    """What one training step is given."""

    x_0: Tensor
    """(batch, channels, *grid), float32, in [-1, 1] or standardised."""
    label: Tensor | None
    """(batch,), int64, -1 where a sample has none; None where no sample has one."""
    cluster: Tensor
    """(batch,), int64."""
    text: TextStates | None = None
    """States of the captions, where the recipe names a text encoder."""
    host_cluster: Tensor | None = None
    """If the batch is on a device, its clusters on the CPU, where reading them makes nobody wait."""

    @property
    def cluster_on_cpu(self) -> Tensor:
        """(batch,), int64."""
        return self.cluster if self.host_cluster is None else self.host_cluster


@dataclass(frozen=True)
class _Group:
    """One row group of one file of one stage."""

    stage: int
    name: str
    index: int
    rows: int


class _Block:
    """Rows in memory, column by column."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["sample"])

    def take(self, rows: NDArray[np.int64] | slice) -> "_Block":
        return _Block({name: column[rows] for name, column in self.columns.items()})

    @staticmethod
    def join(blocks: Sequence["_Block"]) -> "_Block":
        if len(blocks) == 1:
            return blocks[0]
        names = blocks[0].columns
        return _Block({name: np.concatenate([block.columns[name] for block in blocks]) for name in names})


class Reader:
    """Endless shuffled batches of one cluster, or of several together.

    Batch number s is a function of files, seed and s alone: every sample comes once per epoch, in an order
    that depends on (seed, epoch), and batches run over the borders of epochs. What fits is held in memory and
    shuffled as a whole; otherwise row groups are shuffled, and rows within a window of groups.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        batch: int,
        seed: int,
        *,
        memory: int = MEMORY,
        held_out: bool = False,
    ) -> None:
        """`held_out` reads what nobody trains on, and nothing else."""
        self._stages, self._held_out = list(stages), held_out
        self._records = [stage.record for stage in self._stages]
        self._about = [
            record.holding(ClusterContents, str(stage.path))
            for stage, record in zip(self._stages, self._records, strict=True)
        ]
        self.contents = self._about[0]
        self.shape, self.classes = self.contents.shape, self.contents.classes
        self.clusters, self.priors = self.contents.clusters, self.contents.priors
        self.rows: int = sum(rows for about in self._about for _, rows in self._files(about))
        for stage, about in zip(self._stages, self._about, strict=True):
            if about.standard != self.contents.standard:
                raise DataError(
                    f"{stage.path} holds other samples than {self._stages[0].path}; partition again"
                )
        self._batch, self._seed = batch, seed
        self._dtype = np.dtype(self.contents.dtype)
        self._groups = list(self._all_groups())
        total = sum(about.bytes for about in self._about)
        self._whole = total <= memory
        # Two windows are held at a time: the one that is read from and the next.
        self._per_window = max(1, memory * len(self._groups) // (2 * max(1, total)))
        self._everything: _Block | None = None
        self._verified_files: set[tuple[int, str]] = set()
        self._verified_groups: set[_Group] = set()

    def first(self, most: int | None = None) -> Batch:
        """The first rows of all clusters as they rest, together at most so many, each with its share."""
        wanted = self.rows if most is None else min(most, self.rows)
        blocks, seen = list[_Block](), 0
        for stage in range(len(self._stages)):
            own = [group for group in self._groups if group.stage == stage]
            before, seen = seen, seen + sum(group.rows for group in own)
            share = seen * wanted // self.rows - before * wanted // self.rows
            ends = np.cumsum([group.rows for group in own])
            needed = own[: int(np.searchsorted(ends, share)) + 1] if share else []
            blocks += [self._read(needed).take(np.arange(share))] if needed else []
        return self._to_batch(_Block.join(blocks))

    def batches(self, start_step: int = 0) -> Generator[Batch, None, None]:
        """Batches number `start_step`, `start_step + 1`, … made ready by a thread; close it when done."""
        batch_bytes = 4 * self._batch * int(np.prod(self.shape))
        ready: queue.Queue[Batch | BaseException] = queue.Queue(min(32, max(2, AHEAD_BYTES // batch_bytes)))
        stop = threading.Event()
        thread = threading.Thread(
            target=self._fill, args=(ready, stop, start_step), name="atoll-reader", daemon=True
        )
        thread.start()
        try:
            while True:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()

    def _fill(self, ready: "queue.Queue[Batch | BaseException]", stop: threading.Event, step: int) -> None:
        """What the thread does."""

        def put(item: Batch | BaseException) -> None:
            while not stop.is_set():
                with contextlib.suppress(queue.Full):
                    ready.put(item, timeout=0.05)
                    return

        try:
            with contextlib.closing(self._make(step)) as batches:
                for batch in batches:
                    put(batch)
                    if stop.is_set():
                        return
        except BaseException as error:
            put(error)

    def _make(self, step: int) -> Generator[Batch, None, None]:
        """Batches, one by one, in this thread."""
        waiting: list[_Block] = []
        held = 0
        with contextlib.closing(self._shuffled(step * self._batch)) as blocks:
            for block in blocks:
                used = 0
                while len(block) - used >= self._batch - held:
                    take = self._batch - held
                    waiting.append(block.take(slice(used, used + take)))
                    yield self._to_batch(_Block.join(waiting))
                    used, held, waiting = used + take, 0, []
                if used < len(block):
                    waiting.append(block.take(slice(used, None)))
                    held += len(block) - used

    def _shuffled(self, position: int) -> Generator[_Block, None, None]:
        """Rows from a position on, endlessly, in shuffled blocks no larger than a few batches."""
        step = 4 * self._batch
        with ThreadPoolExecutor(1, "atoll-reader") as pool:
            places = self._places(position)
            epoch, window, skip, groups = next(places)
            upcoming = pool.submit(self._load, groups)
            while True:
                block = upcoming.result()
                order = generator(self._seed, epoch, window).permutation(len(block))[skip:]
                epoch, window, skip, groups = next(places)
                upcoming = pool.submit(self._load, groups)
                for start in range(0, len(order), step):
                    yield block.take(order[start : start + step])
                del block  # before the next is asked for: never three windows in memory

    def _places(self, position: int) -> Iterator[tuple[int, int, int, tuple[_Group, ...]]]:
        """(epoch, window, rows of it to skip, its groups) from a position on, without reading anything."""
        epoch, offset = divmod(position, self.rows)
        while True:
            for window, groups in enumerate(self._windows(epoch)):
                rows = sum(group.rows for group in groups)
                if offset < rows:
                    yield epoch, window, offset, groups
                offset = max(0, offset - rows)
            epoch += 1

    def _windows(self, epoch: int) -> list[tuple[_Group, ...]]:
        """The windows of an epoch, each with about the natural share of every cluster."""
        if self._whole:
            return [tuple(self._groups)]
        random = generator(self._seed, epoch)
        keys = np.empty(len(self._groups))
        owner = np.array([group.stage for group in self._groups])
        for stage in range(len(self._stages)):
            own = np.flatnonzero(owner == stage)
            # The i-th of n groups, shuffled, comes at about i/n of the epoch: so for every cluster alike.
            keys[random.permutation(own)] = (np.arange(len(own)) + random.random(len(own))) / max(1, len(own))
        order = [self._groups[index] for index in np.argsort(keys, kind="stable")]
        return [tuple(order[at : at + self._per_window]) for at in range(0, len(order), self._per_window)]

    def _all_groups(self) -> Iterator[_Group]:
        for stage, about in enumerate(self._about):
            size = about.group
            for name, rows in self._files(about):
                for index in range(-(-rows // size)):
                    yield _Group(stage, name, index, min(size, rows - index * size))

    def _files(self, about: ClusterContents) -> Sequence[tuple[str, int]]:
        """Which files are read, and how many rows each has."""
        return about.holdout if self._held_out else about.parts

    def _load(self, groups: tuple[_Group, ...]) -> _Block:
        """Read row groups; a set that fits in memory is read once."""
        if self._everything is not None:
            return self._everything
        block = self._read(groups)
        if self._whole:
            self._everything = block
        return block

    def _read(self, groups: Sequence[_Group]) -> _Block:
        files: dict[tuple[int, str], list[_Group]] = {}
        for group in groups:
            files.setdefault((group.stage, group.name), []).append(group)
        return _Block.join([self._load_file(*key, wanted) for key, wanted in files.items()])

    def _load_file(self, stage: int, name: str, groups: list[_Group]) -> _Block:
        about, files = self._about[stage], self._records[stage].files
        expected = None if (stage, name) in self._verified_files else files[name]
        columns = ["sample", "label", *(TEXT_COLUMNS if about.text else ())]
        first = not self._verified_groups.issuperset(groups)
        with open_parquet(self._stages[stage], name, expected) as file:
            table = _read_groups(self._stages[stage], name, file, groups, None if first else columns)
        self._verified_files.add((stage, name))
        if first:
            self._verify_rows(self._stages[stage], name, table)
            self._verified_groups.update(groups)
        block = {column: as_array(table[column]) for column in columns}
        block["sample"] = block["sample"].view(self._dtype).reshape(table.num_rows, *self.shape)
        block["cluster"] = np.full(table.num_rows, about.cluster, np.int64)
        return _Block(block)

    @staticmethod
    def _verify_rows(stage: Stage, name: str, table: pa.Table) -> None:
        """Check the hash of every row, the first time that it is used."""
        for row in table.to_pylist():
            if row_digest(row) != row["sha256"]:
                raise CorruptError(
                    f"{stage.path / name} holds a damaged row ({row['id'].hex()[:12]}); "
                    f"{repair.advice(stage.path)}"
                )

    def _to_batch(self, block: _Block) -> Batch:
        columns = block.columns
        states = None
        if "tokens" in columns:
            about = self.contents.text
            assert about is not None
            states = text.from_rest(
                list(columns["tokens"]), list(columns["pooled"]), about.tokens, about.width
            )
        return Batch(
            standardise(torch.from_numpy(columns["sample"]), self.contents),
            torch.from_numpy(columns["label"]) if self.classes else None,
            torch.from_numpy(columns["cluster"]),
            states,
        )


def _read_groups(
    stage: Stage, name: str, file: pq.ParquetFile, groups: Sequence[_Group], columns: Sequence[str] | None
) -> pa.Table:
    try:
        return file.read_row_groups([group.index for group in groups], columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(
            f"{stage.path / name} cannot be read ({reason(error)}); {repair.advice(stage.path)}"
        ) from None


def generator(*key: int) -> np.random.Generator:
    """Randomness that is a function of these numbers alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
