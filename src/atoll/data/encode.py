"""What each sample becomes before it rests: latents or pixels, features, text states."""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from atoll.config import OWN_FEATURES, DataConfig, EncodeConfig, RunConfig
from atoll.data import features, sheets, summary, text
from atoll.data.duplicates import repeated_rows
from atoll.data.excerpt import Excerpt
from atoll.data.identity import identity_of_settings
from atoll.data.latents import Autoencoder
from atoll.data.parts import (
    Encoded,
    Facts,
    PartWriter,
    check_alike,
    dropped_path,
    features_path,
    read_facts,
    writing,
)
from atoll.data.samples import Kind, Sample, Skipped, Source
from atoll.data.sources import open_source
from atoll.data.statistics import preview, statistics
from atoll.data.store import group_rows
from atoll.data.values import fit_preview, in_pixels
from atoll.errors import DataError
from atoll.runs import Run, Stage, read_json, replacing, write_json
from atoll.runs.records import DataContents

Progress = Callable[[str, int, int], None]
Item = TypeVar("Item")
SKIPPED = "skipped.jsonl"
PIECES = "pieces.json"
"""Of which pieces the parts of an unfinished stage are."""
PREVIEWED = 64
"""Samples of each batch that the preview of latents is fitted to."""
MAX_CLASSES = 100_000
EARLY = 1000
"""Where nobody knows how many samples there are, at least so many are assumed to come."""


def prepare(run: Run, *, progress: Progress | None = None) -> Stage[DataContents]:
    """Bring all samples of the source to rest in `data/`."""
    stage = run.data
    source = open_source(run.config.data)
    made_from = inputs(run.config, source)
    with writing(stage, made_from, functools.partial(begin, run, source)) as left:
        if left:
            parts = list(write_parts(source, run.config, stage, progress))
            contents, files = _finish(source, run.config, stage, parts)
            stage.finish(made_from, files, contents)
            (stage.path / PIECES).unlink(missing_ok=True)
    return stage


def begin(run: Run, source: Source) -> bool:
    """Open `data/` for a source; of one that has changed since, the parts of unchanged pieces stay."""
    stage, made_from = run.data, inputs(run.config, source)
    pieces = [source.piece_identity(piece) for piece in range(source.pieces)]
    if not stage.done and (stage.path / PIECES).is_file():
        before = stage.started or {}
        if before != made_from and {**before, "source": made_from["source"]} == made_from:
            _forget_changed(stage, read_json(stage.path / PIECES), pieces)
            stage.start(made_from)
    if not stage.begin(made_from):
        return False
    write_json(stage.path / PIECES, pieces)
    return True


def _forget_changed(stage: Stage, before: Sequence[str], after: Sequence[str]) -> None:
    """Remove the parts of pieces that are others than they were."""
    for piece, identity in enumerate(before):
        if piece >= len(after) or after[piece] != identity:
            for path in stage.path.glob(f"*-{piece:05d}-*"):
                path.unlink()


def inputs(config: RunConfig, source: Source) -> dict[str, Any]:
    """What `data/` is made from."""
    return {**identity_of_settings(config), "source": source.identity}


class Span(NamedTuple):
    """Which samples of a source make a part."""

    piece: int
    start: int
    rows: int


def write_parts(
    source: Source, config: RunConfig, stage: Stage, progress: Progress | None = None
) -> Iterator[str]:
    """Write every part that is not there yet, and name them all in order."""
    encoder = Encoder(config.encode, source.kind, source.span)
    total, rows = Facts(), config.data.part

    def tell(more: int = 0) -> None:
        if progress is not None:
            progress("samples read", total.rows + total.skipped + more, source.rows or 0)

    for piece in range(source.pieces):
        for chunk in itertools.count():
            path = stage.path / part_name(piece, chunk)
            span = Span(piece, chunk * rows, rows)
            if not path.is_file() and not write_part(source, span, encoder, path, tell):
                break
            facts = read_facts(path)
            total.rows, total.skipped = total.rows + facts.rows, total.skipped + facts.skipped
            total.skipped_names += facts.skipped_names[: 1 - len(total.skipped_names)]
            total.unknown += facts.unknown[: 1 - len(total.unknown)]
            check_skipped(total, config.data.max_skipped, source.rows or max(total.rows, EARLY))
            check_same_shape(total, facts)
            tell()
            yield path.name
            if facts.rows + facts.skipped < rows:
                break
    check_skipped(total, config.data.max_skipped, total.rows + total.skipped)
    check_complete(total, source.rows, config.data)
    if not total.rows:
        raise DataError(f"data.source '{config.data.source}' holds no samples; give one that does")


def part_name(piece: int, chunk: int) -> str:
    """The file of a part."""
    return f"part-{piece:05d}-{chunk:03d}.parquet"


def write_piece(source: Source | Excerpt, piece: int, rows: int, encoder: "Encoder", stage: Stage) -> None:
    """Write the parts of one piece that are not there yet; pieces do not depend on each other."""
    for chunk in itertools.count():
        path = stage.path / part_name(piece, chunk)
        if not path.is_file() and not write_part(source, Span(piece, chunk * rows, rows), encoder, path):
            return
        facts = read_facts(path)
        if facts.rows + facts.skipped < rows:
            return


def write_part(
    source: Source | Excerpt,
    span: Span,
    encoder: "Encoder",
    path: Path,
    tell: Callable[[int], None] = lambda rows: None,
) -> bool:
    """Write one part, a function of source and span alone; False if there are no samples there."""
    items = itertools.islice(source.read(span.piece, span.start), span.rows)
    with contextlib.closing(read_ahead(items, encoder.batch)) as batches:
        beginning = next(batches, None)
        if beginning is None:
            return False
        first: Sample | None = None
        with PartWriter(path) as writer:
            for batch in itertools.chain([beginning], batches):
                good = [item for item in batch if isinstance(item, Sample)]
                for item in batch:
                    if isinstance(item, Skipped):
                        writer.facts.skip(item)
                    else:
                        first = first or item
                        check_alike(first, item)
                if good:
                    writer.add(encoder(good))
                tell(writer.facts.rows + writer.facts.skipped)
    return True


def read_ahead(items: Iterator[Item], size: int) -> Generator[list[Item], None, None]:
    """Lists of items, of which the next is read while the last is worked on."""
    with ThreadPoolExecutor(1, "atoll-prepare") as pool:
        take = functools.partial(_take, items, size)
        upcoming = pool.submit(take)
        while batch := upcoming.result():
            upcoming = pool.submit(take)
            yield batch


def _take(items: Iterator[Item], size: int) -> list[Item]:
    return list(itertools.islice(items, size))


def check_same_shape(total: Facts, facts: Facts) -> None:
    """Stop as soon as a part has samples of another shape than those before it."""
    if facts.rows:
        total.shape, total.dtype = total.shape or facts.shape, total.dtype or facts.dtype
        if (facts.shape, facts.dtype) != (total.shape, total.dtype):
            raise DataError("samples have different shapes; set data.size, and data.channels if need be")


def check_skipped(total: Facts, share: float, expected: int) -> None:
    """Stop as soon as more samples cannot be read than may be among those that are expected."""
    if total.unknown and share < 1:
        lost = total.unknown[0]
        raise DataError(
            f"{lost['name']}: {lost['reason']}, and how many samples are missing nobody knows; get it again, "
            "or take what is there by data.max_skipped = 1"
        )
    if total.skipped > share * expected:
        first = total.skipped_names[0]
        raise DataError(
            f"{total.skipped} of {total.rows + total.skipped} samples cannot be read, first {first['name']} "
            f"({first['reason']}); repair or remove them, or allow more by data.max_skipped"
        )


def check_complete(total: Facts, promised: int | None, config: DataConfig) -> None:
    """Stop where a source ends before the number of samples that it says it has."""
    count = total.rows + total.skipped
    if promised is not None and count < promised and config.max_skipped < 1:
        raise DataError(
            f"data.source '{config.source}' ends after {count:,} of {promised:,} samples; get it again, or "
            "take what is there by data.max_skipped = 1"
        )


class Encoder:
    """All models of a run, loaded when the first batch comes, applied to batches of samples."""

    def __init__(self, config: EncodeConfig, kind: Kind, span: tuple[float, float] | None) -> None:
        self.config, self.kind, self.batch, self.span = config, kind, config.batch, span
        self._loaded = False

    def _load(self) -> None:
        config = self.config
        if config.autoencoder is not None and self.kind not in ("image", "video"):
            raise DataError(f"encode.autoencoder is for pictures and video, not {self.kind}; leave it out")
        self._autoencoder = (
            Autoencoder(config.autoencoder, config.device, config.precision) if config.autoencoder else None
        )
        self._features = features.open_features(config, self.kind)
        self._text = (
            text.TextEncoder(config.text, config.text_tokens, config.device, config.precision)
            if config.text is not None
            else None
        )
        self._loaded = True

    def __call__(self, samples: Sequence[Sample]) -> Encoded:
        """Encode a batch."""
        if not self._loaded:
            self._load()
        values = torch.from_numpy(np.stack([sample.values for sample in samples]))
        pixels = values if self.span is None else in_pixels(values, self.span)
        if self._autoencoder is not None and self.kind == "video" and values.dtype != torch.uint8:
            raise DataError("encode.autoencoder needs video as uint8; convert the samples")
        rested = values if self._autoencoder is None else self._autoencoder.encode(pixels).half()
        if rested is not values and not torch.isfinite(rested).all():
            raise DataError(
                f"encode.autoencoder '{self.config.autoencoder}' gives values that are not finite"
            )
        return Encoded(
            samples,
            rested.numpy(),
            features.to_rest(self._features(pixels), pixels),
            None
            if self._text is None
            else text.to_rest(self._text([item.caption or "" for item in samples])),
            None if rested is values else fit_preview(rested[:PREVIEWED].float(), pixels[:PREVIEWED]),
        )


def _finish(
    source: Source, config: RunConfig, stage: Stage, parts: Sequence[str]
) -> tuple[DataContents, list[str]]:
    """What is in the folder, and its files."""
    paths = [stage.path / part for part in parts]
    facts = [read_facts(path) for path in paths]
    skipped = [item for fact in facts for item in fact.skipped_names]
    with replacing(stage.path / SKIPPED) as beside:
        beside.write_text("".join(json.dumps(item) + "\n" for item in skipped), encoding="utf-8")
    duplicates, dropped = _drop_duplicates(paths, drop=config.data.duplicates == "drop")
    contents = _contents(source, config, dict(zip(parts, facts, strict=True)), duplicates)
    filled = [path for path, fact in zip(paths, facts, strict=True) if fact.rows]
    sheets.contact_sheet(filled, contents, stage.path / summary.SHEET)
    files = [SKIPPED, summary.SHEET, *parts, *(features_path(path).name for path in paths), *dropped]
    return contents, files


def _contents(source: Source, config: RunConfig, parts: Mapping[str, Facts], duplicates: int) -> DataContents:
    """All that is known of the samples, from what is known of each part."""
    facts = list(parts.values())
    first = next(fact for fact in facts if fact.rows)
    assert first.shape is not None
    assert first.dtype is not None
    span = None if config.encode.autoencoder else source.span
    mean, std = statistics(facts, first.shape[0], span)
    dropped = duplicates if config.data.duplicates == "drop" else 0
    return DataContents.model_validate(
        {
            "kind": source.kind if config.encode.autoencoder is None else "latent",
            "shape": first.shape,
            "dtype": first.dtype,
            "group": group_rows(int(np.prod(first.shape)) * np.dtype(first.dtype).itemsize),
            "mean": mean,
            "std": std,
            "rows": sum(fact.rows for fact in facts) - dropped,
            "bytes": sum(fact.bytes for fact in facts),
            "parts": [(part, fact.rows) for part, fact in parts.items()],
            "class_names": class_names(source, facts),
            "features": "pixels" if config.encode.features in OWN_FEATURES else config.encode.features,
            "text": None if first.text is None else {"model": config.encode.text, **first.text},
            "autoencoder": config.encode.autoencoder,
            "preview": preview(facts),
            "skipped": sum(fact.skipped for fact in facts),
            "skipped_examples": [item for fact in facts for item in fact.skipped_names][:10],
            "duplicates": duplicates,
            "understood": summary.understood(source, facts),
        }
    )


def _drop_duplicates(paths: Sequence[Path], *, drop: bool) -> tuple[int, list[str]]:
    """How many samples have been seen before, and the files that say which, if they are to be dropped."""
    repeated = repeated_rows(paths)
    files = []
    for path, rows in zip(paths, repeated, strict=True):
        if drop and len(rows):
            with replacing(dropped_path(path)) as beside, beside.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
            files.append(dropped_path(path).name)
    return sum(len(rows) for rows in repeated), files


def class_names(source: Source, facts: Sequence[Facts]) -> list[str]:
    """All labels: in the order of the source if it has one, else numbers by value, then words."""
    labels = {label for fact in facts for label in fact.labels}
    if len(labels) > MAX_CLASSES:
        raise DataError(
            f"there are {len(labels)} different labels; if these are captions, set data.caption_field"
        )
    if labels <= set(source.class_names):
        return list(source.class_names) if labels else []
    return sorted(labels, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
