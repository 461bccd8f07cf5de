"""Where samples come from: embedded sets, folders, arrays, Parquet, tars, Hub datasets."""

from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.config import DataConfig
from atoll.data.arrays import ArraySource
from atoll.data.containers import HubSource, ParquetSource, TarSource
from atoll.data.folder import FolderSource
from atoll.data.hub import HUB
from atoll.data.identity import CONTAINERS, EMBEDDED, container_of, find_files, identity_of_files
from atoll.data.listing import Listing, endings
from atoll.data.samples import Source


def open_source(config: DataConfig) -> Source:
    """Find out what `data.source` names, and open it."""
    if config.source in EMBEDDED:
        return ArraySource.of_npz(EMBEDDED[config.source], config)
    if config.source.startswith(HUB):
        return HubSource(config.source.removeprefix(HUB), config)
    root = Path(config.source).expanduser()
    if not root.is_dir():
        return _open_files(find_files(config.source), config)
    listing = Listing(root)
    if listing.pictures:
        return FolderSource(listing, config)
    files = listing.paths()
    source = _open_files(files, config)
    kind = container_of(config.source, files)
    source.ignored = endings(file.name for file in files if not CONTAINERS[kind](file))
    return source


def _open_files(files: Sequence[Path], config: DataConfig) -> Source:
    kind = container_of(config.source, files)
    fitting = [file for file in files if CONTAINERS[kind](file)]
    opened: dict[str, Callable[[Sequence[Path], DataConfig, str], Source]] = {
        "tar": TarSource,
        "parquet": ParquetSource,
        "idx": ArraySource.of_idx,
    }
    return opened.get(kind, ArraySource.of_one)(fitting, config, identity_of_files(fitting))
