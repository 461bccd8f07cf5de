"""Everything comes to rest once, the same whatever happens on the way, or stops with one line."""

import errno
import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from atoll.data import encode, identity
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.sources import open_source
from atoll.errors import ConfigError, DataError, RunError, StaleError
from atoll.runs.locks import alone
from tests import commands
from tests.data.conftest import MakeRun, encoded, picture, pixels
from tests.thorough import often


def folder_of_images(folder: Path, count: int, broken: int = 0) -> Path:
    folder.mkdir()
    for index, image in enumerate(pixels(count)):
        Image.fromarray(image).save(folder / f"{index:03d}.png")
    for index in range(broken):
        (folder / f"{index:03d}.png").write_bytes(b"broken")
    return folder


def test_samples_come_to_rest_in_parts(tmp_path: Path, make_run: MakeRun) -> None:
    images = pixels(10)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(10) % 3)
    run = make_run(tmp_path / "set.npz", data={"part": 4})
    heard: list[tuple[str, int, int]] = []
    contents = prepare(run, progress=lambda *said: heard.append(said)).contents
    assert contents.parts == (
        ("part-00000-000.parquet", 4),
        ("part-00001-000.parquet", 4),
        ("part-00002-000.parquet", 2),
    )
    assert (contents.kind, contents.shape, contents.dtype) == ("image", (3, 8, 8), "uint8")
    assert contents.class_names == ("0", "1", "2")
    assert (contents.rows, contents.bytes, contents.duplicates) == (10, 10 * 192, 0)
    tables = [pq.read_table(run.data.path / name) for name, _ in contents.parts]
    raw = b"".join(cell for table in tables for cell in table["sample"].to_pylist())
    np.testing.assert_array_equal(
        np.frombuffer(raw, np.uint8).reshape(10, 3, 8, 8), images.transpose(0, 3, 1, 2)
    )
    assert heard[-1] == ("samples read", 10, 10)


def test_pieces_written_anywhere_in_any_order_make_the_same_stage(tmp_path: Path, make_run: MakeRun) -> None:
    np.savez(tmp_path / "set.npz", images=pixels(10))
    here, there = (make_run(tmp_path / "set.npz", data={"part": 4}, name=name) for name in ("here", "there"))
    prepare(here)
    source = open_source(there.config.data)
    encode.begin(there, source)
    encoder = encode.Encoder(there.config.encode, source.kind, source.span)
    for piece in (2, 0, 2, 1):
        encode.write_piece(source, piece, 4, encoder, there.data)
    written = {path: path.stat().st_mtime_ns for path in there.data.path.glob("part-*")}
    prepare(there)
    assert there.data.record == here.data.record
    assert {path: path.stat().st_mtime_ns for path in there.data.path.glob("part-*")} == written


def test_a_second_call_does_nothing_and_other_settings_are_told(make_run: MakeRun, npz: Any) -> None:
    path = npz()
    run = make_run(path)
    prepare(run)
    before = {file: file.stat().st_mtime_ns for file in run.data.path.iterdir()}
    prepare(run)
    prepare(make_run(path, data={"max_skipped": 0.5}, encode={"batch": 3}))
    assert {file: file.stat().st_mtime_ns for file in run.data.path.iterdir()} == before
    with pytest.raises(StaleError, match="made with other data; add --start-over"):
        prepare(make_run(path, data={"channels": 1}))
    run.data.clear()
    prepare(make_run(path, data={"channels": 1}))
    assert run.data.contents.shape == (1, 8, 8)


def test_a_changed_source_is_told(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(20))
    prepare(run)
    npz(21)
    with pytest.raises(StaleError, match="made with other source"):
        prepare(run)


def test_broken_samples_are_counted_and_named(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(folder_of_images(tmp_path / "images", 20, broken=2), data={"max_skipped": 0.1, "part": 7})
    contents = prepare(run).contents
    assert (contents.rows, contents.skipped) == (18, 2)
    lines = [json.loads(line) for line in (run.data.path / "skipped.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["000.png", "001.png"]


def test_too_many_broken_samples_stop_and_what_is_finished_stays(tmp_path: Path, make_run: MakeRun) -> None:
    folder, settings = folder_of_images(tmp_path / "images", 20, broken=3), {"part": 7}
    run = make_run(folder, data={"max_skipped": 0.1, **settings})
    with pytest.raises(
        DataError, match=r"3 of 7 samples cannot be read, first 000.png \(not a readable picture"
    ):
        prepare(run)
    written = {path: path.stat().st_mtime_ns for path in run.data.path.glob("part-*")}
    assert len(written) == 1
    assert prepare(make_run(folder, data={"max_skipped": 0.2, **settings})).contents.rows == 17
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_after_a_repair_only_the_repaired_piece_is_read_again(tmp_path: Path, make_run: MakeRun) -> None:
    folder = folder_of_images(tmp_path / "images", 20)
    good = (folder / "016.png").read_bytes()
    (folder / "016.png").write_bytes(b"broken")
    run = make_run(folder, data={"part": 7, "max_skipped": 0.0})
    with pytest.raises(DataError, match="1 of 20 samples cannot be read, first 016.png"):
        prepare(run)
    written = {path: path.stat().st_mtime_ns for path in sorted(run.data.path.glob("part-*"))}
    assert len(written) == 3
    (folder / "016.png").write_bytes(good)
    assert prepare(run).contents.rows == 20
    changed = [path.name for path, time in written.items() if path.stat().st_mtime_ns != time]
    assert changed == ["part-00002-000.parquet"]
    whole = make_run(folder, data={"part": 7, "max_skipped": 0.0}, name="whole")
    prepare(whole)
    assert contents_of(run.data.path) == contents_of(whole.data.path)


def test_a_mistake_before_the_first_part_leaves_nothing(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(), encode={"device": "nowhere", "autoencoder": "some/thing"})
    with pytest.raises(ConfigError, match="encode.device"):  # before anything is loaded that may be large
        prepare(run)
    assert not run.data.path.exists()


def test_one_broken_among_few_stops_by_default(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(DataError, match="1 of 20 samples cannot be read"):
        prepare(make_run(folder_of_images(tmp_path / "images", 20, broken=1)))


@pytest.mark.parametrize("part", [2, 100])
def test_samples_of_different_sizes_are_told(tmp_path: Path, make_run: MakeRun, part: int) -> None:
    (tmp_path / "images").mkdir()
    for index, size in enumerate([(8, 8), (8, 8), (9, 8)]):
        (tmp_path / "images" / f"{index}.png").write_bytes(encoded(picture(index, size)))
    run = make_run(tmp_path / "images", data={"part": part})
    with pytest.raises(DataError, match="set data.size"):
        prepare(run)
    assert run.data.path.exists() == (
        part == 2
    )  # where a part was finished, it stays until it is thrown away
    changed = make_run(tmp_path / "images", data={"size": 8, "part": part})
    changed.data.clear()
    assert prepare(changed).contents.rows == 3


@pytest.mark.parametrize(("what", "rows"), [("keep", 12), ("drop", 8)])
def test_duplicates_are_found_and_dropped_when_asked(
    make_run: MakeRun, npz: Any, what: str, rows: int
) -> None:
    images = pixels(8)
    run = make_run(npz(images=np.concatenate([images, images[:4]])), data={"duplicates": what, "part": 5})
    contents = prepare(run).contents
    assert (contents.duplicates, contents.rows) == (4, rows)


def test_series_are_standardised_by_stored_statistics(tmp_path: Path, make_run: MakeRun) -> None:
    series = np.random.default_rng(0).normal([[[5.0], [-3.0]]], [[[2.0], [0.5]]], (50, 2, 30))
    np.savez(tmp_path / "s.npz", x=series.astype(np.float32))
    contents = prepare(make_run(tmp_path / "s.npz", data={"part": 7})).contents
    assert (contents.kind, contents.shape, contents.dtype) == ("series", (2, 30), "float32")
    assert contents.mean == pytest.approx(series.mean(axis=(0, 2)), rel=1e-6)
    assert contents.std == pytest.approx(series.std(axis=(0, 2)), rel=1e-5)


def test_a_full_disk_is_told_and_what_is_whole_is_kept(
    make_run: MakeRun, npz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(npz(12), data={"part": 4})
    write = pq.ParquetWriter.write_table
    calls = []

    def full(self: pq.ParquetWriter, *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DataError, match="no space left for .*data; free some and run the same command again"):
        prepare(run)
    assert sorted(path.name for path in run.data.path.iterdir()) == [
        "features-00000-000.npy",
        "part-00000-000.parquet",
        "pieces.json",
        "started.json",
    ]
    assert prepare(run).contents.rows == 12


def test_two_processes_do_not_write_the_same_stage(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz())
    with alone(run.data.path), pytest.raises(RunError, match="is being written by another process"):
        prepare(run)
    prepare(run)


KILLED = """
import os, sys
from pathlib import Path
from atoll.config import validate
from atoll.data.encode import prepare
from atoll.runs import Run, read_json

# before or after which file put in place it is killed; 0: never
settings, folder, number, after = sys.argv[1:]
place, placed = Path.replace, []

def replace(path, target):
    placed.append(target)
    last = len(placed) == int(number)
    if last and after == "0":
        os.kill(os.getpid(), 9)
    place(path, target)
    if last:
        os.kill(os.getpid(), 9)

Path.replace = replace
prepare(Run(Path(folder), validate(read_json(Path(settings)), "test")))
"""


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file, byte for byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_killed_ten_times_the_files_are_the_same(tmp_path: Path, make_run: MakeRun) -> None:
    folder = folder_of_images(tmp_path / "images", 300, broken=1)
    run = make_run(folder, data={"part": 20, "duplicates": "drop"}, encode={"batch": 4})
    (tmp_path / "config.json").write_text(run.config.model_dump_json())
    (tmp_path / "killed.py").write_text(KILLED)

    def work(path: Path, kill_at: int = 0, after: bool = False) -> bool:
        """Prepare in a process of its own; whether it was killed."""
        settings = tmp_path / "config.json"
        done = commands.python(tmp_path / "killed.py", settings, path, kill_at, int(after))
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    whole = tmp_path / "whole"
    assert not work(whole)
    chance = random.Random(0)
    for _ in range(often(10, 3)):
        assert work(tmp_path / "killed", chance.randint(1, 6), chance.random() < 0.5)
    assert not work(tmp_path / "killed")
    assert contents_of(tmp_path / "killed" / "data") == contents_of(whole / "data")


def test_features_of_pictures_are_not_for_series(tmp_path: Path, make_run: MakeRun) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((5, 1, 9), np.float32))
    with pytest.raises(DataError, match="sees pictures, not series"):
        prepare(make_run(tmp_path / "s.npz", encode={"features": "facebook/dinov2-base"}))
    with pytest.raises(DataError, match="encode.autoencoder is for pictures and video, not series"):
        prepare(make_run(tmp_path / "s.npz", encode={"autoencoder": "stabilityai/sd-vae-ft-mse"}))


def test_captions_taken_for_labels_are_told(
    monkeypatch: pytest.MonkeyPatch, make_run: MakeRun, npz: Any
) -> None:
    monkeypatch.setattr(encode, "MAX_CLASSES", 5)
    with pytest.raises(DataError, match="20 different labels; if these are captions"):
        prepare(make_run(npz(20, labels=[f"caption {index}" for index in range(20)])))


def test_only_a_named_arithmetic_is_part_of_what_data_is_made_from(make_run: MakeRun) -> None:
    """`auto` may fall differently on two machines that write parts of the same data."""
    configs = [
        make_run("a.npz", encode={"precision": name}).config for name in ("auto", "float32", "bfloat16")
    ]
    digests = {identity.identity_of_settings(config)["encode"] for config in configs}
    assert len(digests) == 3
    plain = make_run("a.npz", name="plain").config
    assert (
        identity.identity_of_settings(configs[0])["encode"] == identity.identity_of_settings(plain)["encode"]
    )


def test_what_is_done_can_be_looked_at_while_others_do(make_run: MakeRun, npz: Any) -> None:
    """Several trainings of a study begin at once, each of which asks for the same samples and clusters."""
    run = make_run(npz(images=pixels(60)))
    data, clusters = prepare(run), partition(run)
    with alone(run.data.path), alone(run.partition.path):
        assert prepare(run).digest == data.digest
        assert partition(run).digest == clusters.digest
