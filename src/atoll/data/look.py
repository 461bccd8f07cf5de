"""A first look at a source: what its samples are, before any of them is encoded, and without torch."""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.config import Facts, RunConfig
from atoll.data import hub
from atoll.data.hub import HUB
from atoll.errors import DataError
from atoll.runs import Run
from atoll.runs import known as record

if TYPE_CHECKING:  # who looks at records alone need not wait for what opens sources
    from atoll.data.samples import Sample, Source

logger = logging.getLogger(__name__)

PIECES, EACH = 4, 8
"""So many pieces of a source are opened, and so many samples of each are looked at."""


def known(run: Run, *, source: bool = False, note: bool = False) -> Facts:
    """What is known of a run's samples: by its records, or, if asked, by a look at the source.

    A source that is not here, or not yet, is no mistake of the recipe; who opens it in earnest will say so.
    """
    for stage in (run.data, run.partition):
        if stage.done:
            return record.known(stage.contents)
    if not source:
        return Facts()
    try:
        return look(run.config)
    except (DataError, OSError) as error:
        if note:
            logger.warning("the samples cannot be looked at yet: %s", error)
        return Facts()


def require_network(run: Run) -> None:
    """Refuse a source on the Hub that cannot be asked for, at once: before anything slow is loaded.

    Whoever has the samples already, here or in a store, needs no network.
    """
    source, launch = run.config.data.source, run.config.launch
    if source.startswith(HUB) and not (run.data.done or run.partition.done or launch.store):
        hub.check_reachable(source.removeprefix(HUB))


def look(config: RunConfig) -> Facts:
    """What a few samples of the source show; nothing where they would have to be fetched."""
    if config.data.source.startswith(HUB):
        return Facts()
    from atoll.data.sources import open_source  # noqa: PLC0415 - see above

    source = open_source(config.data)
    samples = list(_some(source))
    if not samples:
        return Facts(rows=source.rows)
    shapes = {sample.values.shape for sample in samples}
    labels = {sample.label for sample in samples} - {None}
    return Facts(
        shape=_resting(config, samples[0].values.shape) if len(shapes) == 1 else None,
        rows=source.rows,
        kind=source.kind,
        # How many classes there are is known by name or not at all, but none is none.
        classes=len(source.class_names) or (None if labels else 0),
        captions=any(sample.caption is not None for sample in samples),
    )


def _some(source: "Source") -> Iterator["Sample"]:
    """The first samples of pieces all over the source."""
    from atoll.data.samples import Sample  # noqa: PLC0415 - see above

    step = max(1, source.pieces // PIECES)
    for piece in range(0, source.pieces, step):
        for item in islice(source.read(piece), EACH):
            if isinstance(item, Sample):
                yield item


def _resting(config: RunConfig, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape at rest: that of latents where an autoencoder makes them, if it lies in a folder here."""
    if config.encode.autoencoder is None:
        return shape
    path = Path(config.encode.autoencoder).expanduser() / "config.json"
    if not path.is_file():
        return None
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        levels = about.get("block_out_channels") or about["encoder_block_out_channels"]
        return (int(about["latent_channels"]), *(size // 2 ** (len(levels) - 1) for size in shape[1:]))
    except (ValueError, KeyError, TypeError):
        return None
