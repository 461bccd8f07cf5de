"""Some samples of a source as the network would see them, before anything is encoded."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from atoll.config import OWN_FEATURES, RunConfig
from atoll.data import sheets, summary
from atoll.data.parts import Encoded, Facts, check_alike
from atoll.data.samples import Sample, Skipped, Source
from atoll.data.sources import open_source
from atoll.data.statistics import statistics
from atoll.errors import DataError
from atoll.runs.records import DataContents


def preview(config: RunConfig, path: Path) -> DataContents:
    """Draw a sheet of samples from all over the source, and say what was understood of it."""
    source = open_source(config.data)
    facts, samples = Facts(), list[Sample]()
    for item in some(source, sheets.COUNT):
        if isinstance(item, Skipped):
            facts.skip(item)
        else:
            samples.append(item)
            check_alike(samples[0], item)
    if not samples:
        first = f", first {facts.skipped_names[0]['name']}" if facts.skipped_names else ""
        raise DataError(f"data.source '{config.data.source}' shows no sample that can be read{first}")
    values = np.stack([sample.values for sample in samples])
    facts.add(Encoded(samples, values, np.zeros((len(samples), 0))))
    mean, std = statistics([facts], values.shape[1], source.span)
    rows = source.rows if source.rows is not None else len(samples)
    about = summary.understood(source, [facts])
    if about.labelled == len(samples):  # as far as one sees, all are
        about = about.model_copy(update={"labelled": rows})
    contents = DataContents.model_validate(
        {
            "kind": source.kind,
            "shape": values.shape[1:],
            "dtype": str(values.dtype),
            "mean": mean,
            "std": std,
            "group": 1,
            "rows": rows,
            "bytes": 0,
            "parts": (),
            "features": "pixels" if config.encode.features in OWN_FEATURES else config.encode.features,
            "class_names": source.class_names or sorted(facts.label_counts),
            "skipped": facts.skipped,
            "understood": about,
        }
    )
    sheets.draw(values, contents, path)
    return contents


def some(source: Source, count: int) -> Iterator[Sample | Skipped]:
    """About so many samples, from pieces and places all over the source."""
    pieces = np.unique(np.linspace(0, source.pieces - 1, min(count, source.pieces)).round().astype(int))
    each = -(-count // len(pieces))
    length = source.rows // source.pieces if source.rows else 0
    places = ((int(piece), length * turn // each) for turn in range(each) for piece in pieces)
    seen: set[str] = set()
    for piece, start in islice(places, count):
        for item in islice(source.read(piece, start), 1 if length >= each else each):
            if item.name not in seen and len(seen) < count:
                seen.add(item.name)
                yield item
