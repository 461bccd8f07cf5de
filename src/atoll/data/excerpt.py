"""What of a source one piece needs, so that a machine that encodes it fetches no more.

Besides its own files a piece needs those by which the source decides what it holds: the first pictures, the
first archive. An excerpt has both, in the order of the whole, and reads the piece at its place in there.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from atoll.config import DataConfig
from atoll.data.containers import PEEK, ParquetSource, TarSource
from atoll.data.folder import FolderSource
from atoll.data.identity import find_files
from atoll.data.reading import Stream
from atoll.data.samples import Sample, Skipped, Source
from atoll.data.shaping import EXAMPLES


def needed(source: Source, piece: int, config: DataConfig) -> list[Path] | None:
    """The files without which a piece would not be read as beside all others; None where those are all."""
    if isinstance(source, FolderSource):
        return list(_pictures(source, piece))
    if isinstance(source, ParquetSource) or (isinstance(source, TarSource) and _is_rich(source)):
        others = set(source.files) - {source.files[0], source.files[piece]}
        return [file for file in find_files(config.source) if file not in others]
    return None


def _pictures(source: FolderSource, piece: int) -> Iterator[Path]:
    first = source.listing.some_pictures(0, EXAMPLES)
    own = source.listing.some_pictures(piece * source.piece, (piece + 1) * source.piece)
    names = list(dict.fromkeys(file.name for file in itertools.chain(first, own)))
    yield from (source.root / name for name in names)
    if source.metadata is not None:
        yield from source.listing.tables()
        return
    beside = (source.root / PurePosixPath(name).with_suffix(".txt") for name in names)
    yield from (path for path in beside if path.is_file())


def _is_rich(source: TarSource) -> bool:
    """Whether the first archive alone shows what the source holds."""
    with Stream(source.tars[0].path) as stream:
        return len(list(itertools.islice(source.tars[0].items(stream), 2 * PEEK))) == 2 * PEEK


class Excerpt:
    """A piece of a source in a folder that holds what it needs and nothing else."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of the piece, which is called by its number in the whole."""
        source = self.source
        if not isinstance(source, FolderSource):
            return source.read(min(piece, source.pieces - 1), start)
        first = min(piece * source.piece, EXAMPLES)
        return source.read_between(first + start, first + source.piece)
