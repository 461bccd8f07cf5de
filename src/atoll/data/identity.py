"""What the samples of a run are known by, without opening them: files, settings, models in folders."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atoll import config as settings
from atoll.config import OWN_FEATURES, DataConfig, RunConfig, settings_digest
from atoll.data.hub import HUB
from atoll.data.listing import PICTURES, File, Listing
from atoll.data.reading import patiently, state_of
from atoll.errors import DataError
from atoll.runs import Run, digest, digest_of_list, file_digest

EMBEDDED = {name: Path(__file__).with_name(f"{name}.npz") for name in settings.EMBEDDED}
HASH_LIMIT = 256 * 2**20
"""Sources up to this many bytes are known by their contents, larger ones by names, sizes and times."""

CONTAINERS: dict[str, Callable[[Path], bool]] = {
    "tar": lambda file: file.name.endswith((".tar", ".tar.gz", ".tgz")),
    "parquet": lambda file: file.suffix == ".parquet",
    "idx": lambda file: "idx" in file.name and "ubyte" in file.name,
    "npz": lambda file: file.suffix == ".npz",
    "npy": lambda file: file.suffix == ".npy",
}
"""Kinds of files that hold many samples, the first that fits first."""


def data_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What `data/` is made from; of the Hub what was known when it was made, since asking takes a while."""
    source = identity_of_source(run.config.data)
    if source is None:
        source = _recorded(run)
    return {**identity_of_settings(run.config), "source": source}


def _recorded(run: Run) -> str | None:
    begun = run.data.record.made_from if run.data.done else run.data.started or {}
    known = begun.get("source")
    return None if known is None else str(known)


def identity_of_source(config: DataConfig) -> str | None:
    """A digest that changes when the samples do; None where only the Hub can tell."""
    if config.source in EMBEDDED:
        return identity_of_files([EMBEDDED[config.source]])
    if config.source.startswith(HUB):
        return None
    root = Path(config.source).expanduser()
    if root.is_dir():
        listing = Listing(root)
        if listing.pictures:
            return identity_of_pictures(listing)
        files = listing.paths()
    else:
        files = find_files(config.source)
    kind = container_of(config.source, files)
    fitting = [file for file in files if CONTAINERS[kind](file)]
    samples, labels = idx_files(fitting) if kind == "idx" else (fitting, [])
    return identity_of_files([*samples, *labels] if labels else fitting)


def container_of(source: str, files: Sequence[Path]) -> str:
    """The kind of container that a source is."""
    for kind, fits in CONTAINERS.items():
        if any(fits(file) for file in files):
            return kind
    raise DataError(
        f"data.source '{source}' holds nothing of a known kind; give images "
        f"({', '.join(sorted(suffix.removeprefix('.') for suffix in PICTURES))}), "
        ".npz, .npy, idx, .parquet or .tar"
    )


def idx_files(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """MNIST-style files with samples, and those with their labels if all have one."""
    samples = [file for file in files if "idx1" not in file.name]
    labels = [file.with_name(file.name.replace("images-idx3", "labels-idx1")) for file in samples]
    labelled = all(file.is_file() and file not in samples for file in labels)
    return samples, labels if labelled else []


def find_files(source: str) -> list[Path]:
    """All files that a path or a pattern names, in the order of their names."""
    path = Path(source).expanduser()
    if path.is_dir():
        return Listing(path).paths()
    if path.is_file():
        return [path]
    if any(letter in path.name for letter in "*?[") and path.parent.is_dir():
        return sorted(path.parent.glob(path.name))
    raise DataError(
        f"data.source '{source}' is neither an embedded set ({', '.join(sorted(EMBEDDED))}) nor an existing "
        f"path; {_nearest(path)}"
    )


def _nearest(path: Path) -> str:
    """What may have been meant."""
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, [*EMBEDDED, *beside], n=1)
    return f"did you mean '{near[0]}'?" if near else "correct the name"


def identity_of_files(files: Sequence[Path]) -> str:
    """A digest of files: of their contents, or beyond 256 MiB of their sizes and times."""
    facts = [(file.name, state_of(file)) for file in files]
    if sum(stat.st_size for _, stat in facts) <= HASH_LIMIT:
        return digest([(file.name, _contents(file)) for file in files])
    return digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts])


def identity_of_pictures(listing: Listing) -> str:
    """The same of the pictures of a folder and of what is said beside them, however many there are."""
    files = partial(_pictures_and_beside, listing)
    if sum(file.size for file in files()) <= HASH_LIMIT:
        return digest_of_list((file.name, _contents(listing.root / file.name)) for file in files())
    return digest_of_list((file.name, file.size, file.changed) for file in files())


def _pictures_and_beside(listing: Listing) -> Iterator[File]:
    yield from listing.some_pictures()
    yield from listing.beside()


def _contents(file: Path) -> str:
    return patiently(partial(file_digest, file), file) if file.exists() else ""


def identity_of_settings(config: RunConfig) -> dict[str, str]:
    """Digests of all settings that decide what comes to rest, and of models that lie in folders."""
    borrowed = {key: getattr(config.encode, key) for key in ("autoencoder", "features", "text")}
    folders = {key: name for key, name in borrowed.items() if name and Path(name).expanduser().is_dir()}
    known = {key: identity_of_files(find_files(name)) for key, name in folders.items()}
    if config.encode.features in OWN_FEATURES:  # at rest there are pixels, whatever they are grouped by
        known["features"] = "pixels"
    encode = config.encode.model_copy(update=known)
    return {"data": settings_digest(config.data), "encode": settings_digest(encode)}
