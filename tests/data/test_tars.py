"""Every sample of a damaged tar is read right or counted, and a tar that ended early is never whole."""

import errno
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from atoll.config import DataConfig
from atoll.data.encode import prepare
from atoll.data.reading import Stream
from atoll.data.samples import Sample, Skipped
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import MakeRun, encoded, picture

SIZES = (8, 40, 16, 64)


def files_of(count: int, captions: bool = False) -> dict[str, bytes]:
    """Pictures of different sizes, each of one grey, its number."""
    files = {}
    for index in range(count):
        # Stored without compression, so that members take different numbers of blocks.
        files[f"{index:04d}.png"] = encoded(picture(index % 256, (SIZES[index % 4],) * 2), compress_level=0)
        if captions:
            files[f"{index:04d}.txt"] = f"grey {index}".encode()
    return files


def write(path: Path, files: dict[str, bytes], mode: Any = "w", form: int = tarfile.PAX_FORMAT) -> list[int]:
    """A tar, and where its headers are."""
    with tarfile.open(path, mode, format=form) as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    with tarfile.open(path) as tar:
        return [member.offset for member in tar]


def flip(path: Path, *places: int) -> None:
    raw = bytearray(path.read_bytes())
    for place in places:
        raw[place] ^= 0x20
    path.write_bytes(raw)


def read(path: Path, start: int = 0) -> list[Sample | Skipped]:
    source = open_source(DataConfig(source=str(path), size=8, channels=1))
    return [item for piece in range(source.pieces) for item in source.read(piece, start)]


def greys(items: list[Sample | Skipped]) -> list[int | None]:
    return [int(item.values[0, 0, 0]) if isinstance(item, Sample) else None for item in items]


def test_one_flipped_header_byte_costs_one_sample(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(10))
    for number, header in enumerate(headers):
        write(tmp_path / "a.tar", files_of(10))
        flip(tmp_path / "a.tar", header + random.Random(number).randrange(512))
        expected = [None if index == number else index for index in range(10)]
        assert greys(read(tmp_path / "a.tar")) == expected


def test_a_flipped_size_is_found_by_looking_for_the_next_header(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(10))
    flip(tmp_path / "a.tar", headers[3] + 130, headers[3] + 300)
    assert greys(read(tmp_path / "a.tar")) == [0, 1, 2, None, 4, 5, 6, 7, 8, 9]


def test_long_damage_is_counted_by_its_size(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(400))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[headers[100] : headers[200]] = bytes([7]) * (headers[200] - headers[100])
    (tmp_path / "a.tar").write_bytes(raw)
    items = read(tmp_path / "a.tar")
    # What lies before a place without any header may be longer than it says, and is not trusted.
    assert greys(items) == [*range(99), *[None] * 101, *(index % 256 for index in range(200, 400))]


def test_reading_may_begin_anywhere_in_a_damaged_tar(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(12))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[headers[4] : headers[8]] = bytes(range(256)) * ((headers[8] - headers[4]) // 256)
    (tmp_path / "a.tar").write_bytes(raw)
    whole = read(tmp_path / "a.tar")
    assert greys(whole) == [0, 1, 2, None, None, None, None, None, 8, 9, 10, 11]
    for start in range(13):
        assert [item.name for item in read(tmp_path / "a.tar", start)] == [
            item.name for item in whole[start:]
        ]


@pytest.mark.parametrize(("begin", "end"), [(4, 8), (4, 5), (0, 4)])
def test_holes_of_zeros_are_no_end(tmp_path: Path, begin: int, end: int) -> None:
    headers = write(tmp_path / "a.tar", files_of(12))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[headers[begin] : headers[end] + 100] = bytes(headers[end] + 100 - headers[begin])
    (tmp_path / "a.tar").write_bytes(raw)
    items = read(tmp_path / "a.tar")
    assert len(items) >= 12
    before = list(range(begin - 1)) if begin else []
    assert [grey for grey in greys(items) if grey is not None] == [*before, *range(end + 1, 12)]


@pytest.mark.parametrize(("begin", "end"), [(7, 10), (8, 11), (7, 11), (6, 12), (9, 10), (6, 11)])
def test_several_broken_headers_lose_nothing_uncounted(tmp_path: Path, begin: int, end: int) -> None:
    headers = write(tmp_path / "a.tar", files_of(8, captions=True))
    flip(tmp_path / "a.tar", *(place + 20 for place in headers[begin:end]))
    items = read(tmp_path / "a.tar")
    whole = [index for index in range(8) if not (begin <= 2 * index < end or begin <= 2 * index + 1 < end)]
    assert [grey for grey in greys(items) if grey is not None] == whole
    assert len(items) == 8


def test_a_header_of_zeros_before_a_small_file_is_a_sample_lost(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", {f"{index}.png": encoded(picture(index)) for index in range(6)})
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[headers[3] : headers[3] + 512] = bytes(512)
    (tmp_path / "a.tar").write_bytes(raw)
    items = read(tmp_path / "a.tar")
    assert len(items) >= 6
    assert {grey for grey in greys(items) if grey is not None} >= {0, 1, 4, 5}


def test_a_file_that_ends_in_many_zeros_was_not_all_written(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(40))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[headers[20] :] = bytes(len(raw) - headers[20])
    (tmp_path / "a.tar").write_bytes(raw)
    last = read(tmp_path / "a.tar")[-1]
    assert isinstance(last, Skipped)
    assert last.unknown
    assert "not all written" in last.reason


@pytest.mark.parametrize("member", [0, 1])
def test_a_sample_without_its_caption_is_not_taken_for_whole(tmp_path: Path, member: int) -> None:
    headers = write(tmp_path / "a.tar", files_of(6, captions=True))
    flip(tmp_path / "a.tar", headers[2 * 3 + member] + 20)
    items = read(tmp_path / "a.tar")
    assert greys(items) == [0, 1, 2, None, 4, 5]
    assert [item.caption for item in items if isinstance(item, Sample)] == [
        f"grey {index}" for index in (0, 1, 2, 4, 5)
    ]


def test_swapped_headers_do_not_swap_samples(tmp_path: Path) -> None:
    headers = write(tmp_path / "a.tar", files_of(10))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    one, two = (slice(headers[index], headers[index] + 512) for index in (2, 5))
    raw[one], raw[two] = raw[two], raw[one]
    (tmp_path / "a.tar").write_bytes(raw)
    good = [item for item in read(tmp_path / "a.tar") if isinstance(item, Sample)]
    assert all(item.name == f"a.tar/{int(item.values[0, 0, 0]):04d}" for item in good)
    assert {0, 1, 3, 4, 6, 7, 8, 9} >= {int(item.values[0, 0, 0]) for item in good} >= {0, 1, 7, 8, 9}


def test_archives_that_were_joined_are_read_to_the_end(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {name: files_of(6)[name] for name in list(files_of(6))[:3]})
    write(tmp_path / "b.tar", {name: files_of(6)[name] for name in list(files_of(6))[3:]})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "c.tar").write_bytes(
        (tmp_path / "a.tar").read_bytes() + (tmp_path / "b.tar").read_bytes()
    )
    assert greys(read(tmp_path / "c")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_format_and_long_names(tmp_path: Path, form: int) -> None:
    folder = "f" * 60 + "/" + ("g" * 60 if form == tarfile.USTAR_FORMAT else "ü" * 120)
    write(tmp_path / "a.tar", {f"{folder}/{name}": raw for name, raw in files_of(3).items()}, form=form)
    items = read(tmp_path / "a.tar")
    assert [item.name for item in items] == [f"a.tar/{folder}/{index:04d}" for index in range(3)]


def test_links_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index, raw in enumerate(files_of(2).values()):
            member = tarfile.TarInfo(f"{index}.png")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
        link = tarfile.TarInfo("2.png")
        link.type, link.linkname = tarfile.LNKTYPE, "0.png"
        tar.addfile(link)
    assert greys(read(tmp_path / "a.tar")) == [0, 1, None]


@pytest.mark.parametrize("cut", [0, 700])
def test_a_tar_that_ends_early_stops_the_command(tmp_path: Path, make_run: MakeRun, cut: int) -> None:
    headers = write(tmp_path / "a.tar", files_of(100))
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[: headers[90] + cut])
    settings = {"size": 8, "channels": 1, "max_skipped": 0.5}
    with pytest.raises(DataError, match="ends early.* nobody knows; get it again, or .*max_skipped = 1"):
        prepare(make_run(tmp_path / "a.tar", data=settings))
    contents = prepare(make_run(tmp_path / "a.tar", data={**settings, "max_skipped": 1.0})).contents
    assert (contents.rows, contents.skipped) == (90, 1)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("a.idx", "v1.2 100\npng 1 2 3\n"),
        ("a_stats.json", json.dumps({"count": 120, "successes": 100})),
        ("index.json", json.dumps({"shardlist": [{"url": "x/a.tar", "nsamples": 100}]})),
    ],
)
def test_an_index_says_how_many_are_missing(tmp_path: Path, make_run: MakeRun, name: str, index: str) -> None:
    headers = write(tmp_path / "a.tar", files_of(100))
    (tmp_path / name).write_text(index)
    source = open_source(DataConfig(source=str(tmp_path / "a.tar"), size=8))
    assert source.rows == 100
    assert len(list(source.read(0))) == 100
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[: headers[90]])
    settings = {"size": 8, "channels": 1}
    with pytest.raises(DataError, match="10 of 100 samples cannot be read"):
        prepare(make_run(tmp_path / "a.tar", data={**settings, "max_skipped": 0.09}))
    contents = prepare(make_run(tmp_path / "a.tar", data={**settings, "max_skipped": 0.1})).contents
    assert (contents.rows, contents.skipped) == (90, 10)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.999])
def test_a_packed_tar_that_is_damaged_stops_the_command(
    tmp_path: Path, make_run: MakeRun, place: float
) -> None:
    write(tmp_path / "a.tar.gz", files_of(50), "w:gz")
    size = (tmp_path / "a.tar.gz").stat().st_size
    flip(tmp_path / "a.tar.gz", int(size * place))
    with pytest.raises(DataError, match="is damaged|ends early|holds no samples|cannot be read"):
        prepare(make_run(tmp_path / "a.tar.gz", data={"size": 8, "channels": 1, "max_skipped": 0.9}))


def test_a_disk_that_stutters_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.tar", files_of(20))
    monkeypatch.setattr("atoll.data.reading.time.sleep", lambda seconds: None)
    real, calls = Stream._opened, []

    class Stuttering(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            calls.append(1)
            if len(calls) % 7 == 0:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(count)

    def opened(self: Stream) -> Any:
        if self._file is None:
            real(self)
            self._close()
            self._file = Stuttering(self.path.read_bytes())
            self._file.seek(self.position)
        return self._file

    monkeypatch.setattr(Stream, "_opened", opened)
    assert greys(read(tmp_path / "a.tar")) == list(range(20))
    assert len(calls) > 40


def test_a_disk_that_fails_for_good_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.tar", files_of(5))
    monkeypatch.setattr("atoll.data.reading.time.sleep", lambda seconds: None)
    source = open_source(DataConfig(source=str(tmp_path / "a.tar"), size=8))

    def opened(self: Stream) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Stream, "_opened", opened)
    with pytest.raises(DataError, match="cannot be read now.*run the same command again"):
        list(source.read(0))
