"""Two hundred damaged files of every container: each sample is read right, counted, or the reader stops."""

import gzip
import io
import random
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll.config import DataConfig
from atoll.data.samples import Sample, Skipped
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import encoded, picture, pixels
from tests.thorough import often

COUNT, TRIES = 12, often(200, 40)
IMAGES = pixels(COUNT, size=8)
GREYS = pixels(COUNT, size=8, channels=1)[..., 0]


def pngs() -> list[bytes]:
    """Pictures that take different numbers of a tar's blocks."""
    return [encoded(picture(index, (8 + 12 * (index % 3), 20)), compress_level=0) for index in range(COUNT)]


def write_folder(folder: Path) -> Path:
    for index, raw in enumerate(pngs()):
        (folder / f"{index:02d}.png").write_bytes(raw)
    return folder / "05.png"


def write_npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", images=IMAGES, labels=np.arange(COUNT), class_names=list("abcdefghijkl"))
    return folder / "a.npz"


def write_npy(folder: Path) -> Path:
    np.save(folder / "images.npy", IMAGES)
    return folder / "images.npy"


def idx() -> bytes:
    return struct.pack(">HBBIII", 0, 8, 3, *GREYS.shape) + GREYS.tobytes()


def write_idx(folder: Path) -> Path:
    (folder / "a-images-idx3-ubyte").write_bytes(idx())
    return folder / "a-images-idx3-ubyte"


def write_packed_idx(folder: Path) -> Path:
    (folder / "a-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(), mtime=0))
    return folder / "a-images-idx3-ubyte.gz"


def write_parquet(folder: Path) -> Path:
    table = pa.table({"image": pngs(), "label": list(range(COUNT))})
    path = folder / "a.parquet"
    pq.write_table(table, path, row_group_size=5, write_page_checksum=True, compression="none")
    return path


def write_tar(folder: Path, mode: str = "w") -> Path:
    path = folder / ("a.tar" if mode == "w" else "a.tar.gz")
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for index, raw in enumerate(pngs()):
            for ending, contents in (("png", raw), ("cls", str(index).encode())):
                member = tarfile.TarInfo(f"{index:02d}.{ending}")
                member.size = len(contents)
                tar.addfile(member, io.BytesIO(contents))
    return path


def write_packed_tar(folder: Path) -> Path:
    return write_tar(folder, "w:gz")


def hub_rows() -> Any:
    """What a dataset of the Hub has, in the types of its library."""
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=list("abcdefghijkl"))
    return datasets.Dataset.from_dict(
        {"image": [{"bytes": raw, "path": None} for raw in pngs()], "label": list(range(COUNT))},
        features=datasets.Features({"image": datasets.Image(), "label": names}),
    )


def write_hub_parquet(folder: Path) -> Path:
    path = folder / "train-00000-of-00001.parquet"
    pq.write_table(hub_rows().data.table, path, row_group_size=5, compression="none")
    return path


def write_hub_arrow(folder: Path) -> Path:
    path, table = folder / "train-00000-of-00001.arrow", hub_rows().data.table.combine_chunks()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=5):
            writer.write_batch(batch)
    return path


def flipped(raw: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.choice((1, 1, 1, 4, 30))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return raw


def cut(raw: bytearray, chance: random.Random) -> bytearray:
    return raw[: chance.randrange(len(raw))]


def swapped(raw: bytearray, chance: random.Random) -> bytearray:
    """Two pieces in each other's place, as long as a header of a tar or of an array."""
    size = chance.choice((16, 64, 512))
    places = [size * chance.randrange(max(1, len(raw) // size)) for _ in range(2)]
    one, two = (slice(place, place + size) for place in sorted(places))
    if len(raw[one]) == len(raw[two]):
        raw[one], raw[two] = raw[two], raw[one]
    return raw


def emptied(raw: bytearray, chance: random.Random) -> bytearray:
    """A hole of zeros, as in a file that was not all written."""
    size = chance.choice((64, 512, 3000))
    place = chance.randrange(len(raw)) // 64 * 64
    raw[place : place + size] = bytes(len(raw[place : place + size]))
    return raw


def sized(raw: bytearray, chance: random.Random) -> bytearray:
    """Another number where one may stand, or another length."""
    if chance.random() < 0.3:
        return raw + bytes(chance.randrange(1, 2000))
    place = chance.randrange(len(raw))
    new = chance.choice((chance.randbytes(4), b"\0\0\0\0", b"\xff\xff\xff\xff", b"0000"))
    raw[place : place + 4] = new[: len(raw[place : place + 4])]
    return raw


Write = Callable[[Path], Path]
CHECKED: dict[str, Write] = {
    "folder": write_folder,
    "npz": write_npz,
    "idx.gz": write_packed_idx,
    "parquet": write_parquet,
    "tar": write_tar,
    "tar.gz": write_packed_tar,
}
UNCHECKED: dict[str, Write] = {
    "npy": write_npy,
    "idx": write_idx,
    "hub: parquet": write_hub_parquet,
    "hub: arrow": write_hub_arrow,
}
"""Without checksums of their own: a value or a label may change, but no sample is lost or out of shape."""


def items_of(folder: Path, container: str) -> list[Sample | Skipped]:
    """All of a source; the Hub's are read by its library, from a folder in its layout."""
    name = f"hub:{folder}" if container.startswith("hub") else str(folder)
    source = open_source(DataConfig(source=name, channels=None, kind="image"))
    return [item for piece in range(source.pieces) for item in source.read(piece)]


def damaged(raw: bytes) -> Iterator[tuple[int, bytes]]:
    for number in range(TRIES):
        chance = random.Random(number)
        mutate = (flipped, cut, swapped, sized, emptied)[number % 5]
        yield number, bytes(mutate(bytearray(raw), chance))


@pytest.mark.parametrize("container", [*CHECKED, *UNCHECKED])
def test_never_silently_fewer(tmp_path: Path, container: str) -> None:
    write = {**CHECKED, **UNCHECKED}[container]
    path = write(tmp_path)
    raw = path.read_bytes()
    whole = {item.name: item for item in items_of(tmp_path, container) if isinstance(item, Sample)}
    assert len(whole) == COUNT
    outcomes = {"stopped": 0, "whole": 0, "counted": 0}
    for number, mutated in damaged(raw):
        path.write_bytes(mutated)
        try:
            items = items_of(tmp_path, container)
        except DataError as error:
            outcomes["stopped"] += 1
            assert "\n" not in str(error)
            continue
        good = [item for item in items if isinstance(item, Sample)]
        unknown = any(isinstance(item, Skipped) and item.unknown for item in items)
        assert len(items) >= COUNT or unknown, f"{container} {number}: {len(items)} of {COUNT}"
        outcomes["whole" if len(good) == COUNT else "counted"] += 1
        for item in good:
            original = whole.get(item.name)
            assert original is not None, f"{container} {number}: {item.name} was not there"
            assert item.values.shape == original.values.shape
            if container in CHECKED and container != "tar" and not unknown:  # else a checksum stops it
                assert item.label == original.label, f"{container} {number}: {item.name} is {item.label}"
            if container in CHECKED or container.startswith("hub"):  # pictures have checksums
                assert item.id == original.id, f"{container} {number}: {item.name} is another"
    assert sum(outcomes.values()) == TRIES
    assert outcomes["stopped"] + outcomes["counted"] > TRIES // 10
