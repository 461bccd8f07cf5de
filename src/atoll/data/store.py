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

from atoll.errors import CorruptError, DataError, IsolationError
from atoll.runs import Stage, file_digest

GROUP = 500
"""Rows of a Parquet row group: what is read at once."""
MEMORY = 256 * 2**20
"""Bytes of samples that a reader holds in memory at once."""
AHEAD = 4
"""Batches that are made ready before they are asked for."""

CLUSTER_SCHEMA = [
    pa.field("id", pa.binary(32)),
    pa.field("label", pa.int64()),
    pa.field("caption", pa.string()),
    pa.field("sha256", pa.binary(32)),
]

_allowed: frozenset[Path] | None = None


@contextlib.contextmanager
def sealed(*stages: Stage) -> Iterator[None]:
    """Let nothing but these stages be opened in this process for a while."""
    global _allowed
    before, _allowed = _allowed, frozenset(stage.path.resolve() for stage in stages)
    try:
        yield
    finally:
        _allowed = before


def open_parquet(stage: Stage, name: str, expected: str | None = None) -> pq.ParquetFile:
    """The one door to samples at rest: seal and, where a digest is expected, contents are checked."""
    if _allowed is not None and stage.path.resolve() not in _allowed:
        raise IsolationError(f"{stage.path} belongs to another job; a job may read only its own samples")
    path = stage.path / name
    advice = f"delete {stage.path} and run the same command again"
    if not path.is_file():
        raise CorruptError(f"{path} is missing; {advice}")
    if expected is not None and file_digest(path) != expected:
        raise CorruptError(f"{path} is damaged (sha256 differs); {advice}")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{path} cannot be read ({str(error).splitlines()[0]}); {advice}") from None


def row_digest(sample: bytes, label: int | None, caption: str | None) -> bytes:
    """The sha256 of one row: its sample and all that is said about it."""
    head = f"{len(sample)} {label} {caption is not None} ".encode()
    return hashlib.sha256(head + sample + (caption or "").encode()).digest()


@dataclass(frozen=True)
class Batch:
    """What one training step is given."""

    x_0: Tensor
    """(batch, channels, *grid), float32, in [-1, 1] or standardised."""
    label: Tensor | None
    """(batch,), int64; None where samples have no labels."""
    cluster: Tensor
    """(batch,), int64."""


@dataclass(frozen=True)
class _Group:
    """One row group of one file of one stage."""

    stage: int
    name: str
    index: int
    rows: int


@dataclass(frozen=True)
class _Block:
    """Rows in memory."""

    sample: NDArray[Any]
    label: NDArray[np.int64]
    cluster: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, rows: NDArray[np.int64]) -> "_Block":
        return _Block(self.sample[rows], self.label[rows], self.cluster[rows])

    @staticmethod
    def join(blocks: Sequence["_Block"]) -> "_Block":
        if len(blocks) == 1:
            return blocks[0]
        return _Block(*(np.concatenate([getattr(block, name) for block in blocks]) for name in _COLUMNS))


_COLUMNS = ("sample", "label", "cluster")


class Reader:
    """Endless shuffled batches of one cluster, or of several together.

    Batch number s is a function of files, seed and s alone: every sample comes once per epoch, in an
    order that depends on (seed, epoch), and batches run over the borders of epochs. What fits is held in
    memory and shuffled as a whole; otherwise row groups are shuffled, and rows within a window of groups.
    """

    def __init__(self, stages: Sequence[Stage], batch: int, seed: int, *, memory: int = MEMORY) -> None:
        self._stages = list(stages)
        self._records = [stage.record for stage in self._stages]
        self.contents: dict[str, Any] = dict(self._records[0]["contents"])
        self.shape: tuple[int, ...] = tuple(self.contents["shape"])
        self.classes: int = self.contents["classes"]
        self.clusters: int = self.contents["clusters"]
        self.priors: tuple[float, ...] = tuple(self.contents["priors"])
        self.rows: int = sum(record["contents"]["rows"] for record in self._records)
        for stage, record in zip(self._stages, self._records, strict=True):
            if record["contents"]["shape"] != self.contents["shape"]:
                raise DataError(f"{stage.path} holds samples of another shape than {self._stages[0].path}")
        self._batch, self._seed = batch, seed
        self._dtype = np.dtype(self.contents["dtype"])
        self._groups = list(self._all_groups())
        row_bytes = int(np.prod(self.shape)) * self._dtype.itemsize
        self._whole = self.rows * row_bytes <= memory
        self._per_window = max(
            1, memory // (2 * GROUP * row_bytes)
        )  # two windows are held: this and the next
        self._everything: _Block | None = None
        self._verified: set[tuple[int, str]] = set()
        self._verified_groups: set[_Group] = set()

    def batches(self, start_step: int = 0) -> Generator[Batch, None, None]:
        """Batches number `start_step`, `start_step + 1`, … made ready by a thread; close it when done."""
        ready: queue.Queue[Batch | BaseException] = queue.Queue(AHEAD)
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
                    waiting.append(block.take(np.arange(used, used + take)))
                    yield self._to_batch(_Block.join(waiting))
                    used, held, waiting = used + take, 0, []
                if used < len(block):
                    waiting.append(block.take(np.arange(used, len(block))))
                    held += len(block) - used

    def _shuffled(self, position: int) -> Generator[_Block, None, None]:
        """Rows from a position on, endlessly, in shuffled blocks no larger than a few batches."""
        with ThreadPoolExecutor(1) as pool:
            places = self._places(position)
            epoch, window, skip, groups = next(places)
            upcoming = pool.submit(self._load, groups)
            while True:
                block = upcoming.result()
                order = generator(self._seed, epoch, window).permutation(len(block))[skip:]
                epoch, window, skip, groups = next(places)
                upcoming = pool.submit(self._load, groups)
                step = 4 * self._batch
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
            epoch, offset = epoch + 1, 0

    def _windows(self, epoch: int) -> list[tuple[_Group, ...]]:
        """The windows of an epoch, each with about the natural share of every cluster."""
        if self._whole:
            return [tuple(self._groups)]
        random = generator(self._seed, epoch)
        keys = np.empty(len(self._groups))
        owner = np.array([group.stage for group in self._groups])
        for stage in range(len(self._stages)):
            own = np.flatnonzero(owner == stage)
            keys[random.permutation(own)] = (np.arange(len(own)) + random.random(len(own))) / max(1, len(own))
        order = [self._groups[index] for index in np.argsort(keys, kind="stable")]
        return [tuple(order[at : at + self._per_window]) for at in range(0, len(order), self._per_window)]

    def _all_groups(self) -> Iterator[_Group]:
        for stage, record in enumerate(self._records):
            for name, rows in record["contents"]["parts"]:
                for index in range(-(-rows // GROUP)):
                    yield _Group(stage, name, index, min(GROUP, rows - index * GROUP))

    def _load(self, groups: tuple[_Group, ...]) -> _Block:
        """Read row groups; a set that fits in memory is read once."""
        if self._everything is not None:
            return self._everything
        files: dict[tuple[int, str], list[_Group]] = {}
        for group in groups:
            files.setdefault((group.stage, group.name), []).append(group)
        block = _Block.join([self._load_file(*key, wanted) for key, wanted in files.items()])
        if self._whole:
            self._everything = block
        return block

    def _load_file(self, stage: int, name: str, groups: list[_Group]) -> _Block:
        contents = self._records[stage]["contents"]
        known = (stage, name) in self._verified
        expected = None if known else self._records[stage]["files"][name]
        with open_parquet(self._stages[stage], name, expected) as file:
            table = file.read_row_groups([group.index for group in groups], use_threads=False)
        self._verified.add((stage, name))
        self._verify_rows(stage, name, groups, table)
        rows = table.num_rows
        raw = np.concatenate([_fixed(chunk) for chunk in table["sample"].chunks])
        label = table["label"].fill_null(-1).to_numpy()
        return _Block(
            raw.view(self._dtype).reshape(rows, *self.shape),
            label,
            np.full(rows, contents["cluster"], np.int64),
        )

    def _verify_rows(self, stage: int, name: str, groups: list[_Group], table: pa.Table) -> None:
        """Check the hash of every row the first time that it is used."""
        if self._verified_groups.issuperset(groups):
            return
        columns = [table[column].to_pylist() for column in ("sample", "label", "caption", "sha256")]
        for sample, label, caption, expected in zip(*columns, strict=True):
            if row_digest(sample, label, caption) != expected:
                path = self._stages[stage].path
                raise CorruptError(
                    f"{path / name} holds a damaged row; delete {path} and run the same command again"
                )
        self._verified_groups.update(groups)

    def _to_batch(self, block: _Block) -> Batch:
        x_0 = standardise(torch.from_numpy(block.sample), self.contents)
        label = torch.from_numpy(block.label) if self.classes else None
        return Batch(x_0, label, torch.from_numpy(block.cluster))


def generator(*key: int) -> np.random.Generator:
    """Randomness that is a function of these numbers alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def standardise(raw: Tensor, contents: Mapping[str, Any]) -> Tensor:
    """Stored values as a network sees them: (value - mean) / std, by channel."""
    mean, std = (_per_channel(contents[name], raw.ndim) for name in ("mean", "std"))
    return raw.to(torch.float32).sub_(mean).div_(std)


def to_values(x: Tensor, contents: Mapping[str, Any]) -> Tensor:
    """The inverse of `standardise`, in float32."""
    mean, std = (_per_channel(contents[name], x.ndim).to(x.device) for name in ("mean", "std"))
    return x.detach().to(torch.float32) * std + mean


def to_pixels(x: Tensor, contents: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Pictures (n, height, width, channels) of samples."""
    values = to_values(x, contents).cpu().round().clamp(0, 255).to(torch.uint8)
    return values.movedim(1, -1).contiguous().numpy()


def _per_channel(values: Sequence[float], rank: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1, *[1] * (rank - 2))


def _fixed(chunk: pa.Array) -> NDArray[np.uint8]:
    """The bytes of a column of fixed-size binary, one row each, without a copy."""
    width = chunk.type.byte_width
    buffer = np.frombuffer(chunk.buffers()[1], np.uint8)
    return buffer[chunk.offset * width : (chunk.offset + len(chunk)) * width].reshape(len(chunk), width)
