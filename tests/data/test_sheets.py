"""A sheet shows samples as the network sees them, and always the same ones."""

from pathlib import Path

import numpy as np
from PIL import Image

from atoll.data import curves, sheets, summary
from atoll.data.encode import prepare
from atoll.runs.records import SampleFormat
from tests.data.conftest import MakeRun, pixels

PLAIN = SampleFormat(kind="image", dtype="uint8", mean=(127.5,), std=(127.5,))


def test_every_sample_has_its_place_and_small_ones_are_enlarged(tmp_path: Path) -> None:
    stored = np.arange(0, 90, 10, dtype=np.uint8).reshape(9, 1, 1, 1).repeat(8, 2).repeat(8, 3)
    sheets.draw(stored, PLAIN, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        page = np.asarray(image)
    assert page.shape == (2 + 3 * 34, 2 + 3 * 34)  # eight pixels four times as large, and a margin of two
    assert [int(page[10 + 34 * (i // 3), 10 + 34 * (i % 3)]) for i in range(9)] == list(range(0, 90, 10))


def test_large_pictures_and_series_fit(tmp_path: Path) -> None:
    sheets.draw(np.zeros((4, 1, 200, 100), np.uint8), PLAIN, tmp_path / "a.png")
    series = SampleFormat(kind="series", dtype="float32", mean=(0.0,), std=(1.0,))
    sheets.draw(np.random.default_rng(0).normal(size=(4, 1, 50)), series, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        with Image.open(tmp_path / name) as image:
            assert max(image.size) <= 2 * (max(sheets.TILE, curves.WIDTH) + 2) + 2


def test_the_same_samples_whatever_the_parts(tmp_path: Path, make_run: MakeRun) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(200))
    sheet = []
    for part in (7, 1000):
        run = make_run(tmp_path / "a.npz", data={"part": part}, name=f"run-{part}")
        prepare(run)
        assert summary.SHEET in run.data.record.files
        sheet.append((run.data.path / summary.SHEET).read_bytes())
    assert sheet[0] == sheet[1]


def test_copies_do_not_fill_the_sheet(tmp_path: Path, make_run: MakeRun) -> None:
    images = pixels(200)
    np.savez(tmp_path / "a.npz", images=np.concatenate([images, images[:1].repeat(200, axis=0)]))
    run = make_run(tmp_path / "a.npz")
    prepare(run)
    with Image.open(run.data.path / summary.SHEET) as image:
        page = np.asarray(image)
    tiles = {page[2 + 34 * (i // 8) :, 2 + 34 * (i % 8) :][:32, :32].tobytes() for i in range(64)}
    assert 16 < len(tiles) < 50  # about half of the samples are one
