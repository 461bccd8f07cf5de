"""A piece that was encoded beside nothing but what it needs is the one that was encoded beside all others."""

import io
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from atoll.config import validate
from atoll.data import excerpt
from atoll.data.shares import Assignments, Pieces
from atoll.data.sources import open_source
from atoll.runs import Run, file_digest


def png(number):
    """Grey at first, so that what follows is made grey; each unlike the others."""
    values = np.random.default_rng(number).integers(0, 255, (4, 4) if number < 3 else (4, 4, 3))
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8)).save(file, "png")
    return file.getvalue()


def pictures(folder):
    for number in range(150):
        path = folder / f"class {number // 75}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
        if number % 2:
            path.with_suffix(".txt").write_text(f"picture {number}")


def tabled(folder):
    folder.mkdir()
    rows = ["file_name,label,text"]
    for number in range(150):
        (folder / f"{number:03d}.png").write_bytes(png(number))
        rows.append(f"{number:03d}.png,{number % 3},picture {number}")
    (folder / "metadata.csv").write_text("\n".join(rows))


def archives(folder):
    folder.mkdir()
    for archive in range(3):
        with tarfile.open(folder / f"{archive}.tar", "w") as tar:
            for number in range(40):
                info = tarfile.TarInfo(f"{number:03d}.png")
                data = png(archive * 40 + number)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def tables(folder):
    folder.mkdir()
    for number in range(3):
        rows = [png(number * 10 + row) for row in range(10)]
        table = pa.table({"image": rows, "label": list(range(10))})
        pq.write_table(table, folder / f"{number}.parquet")


def run_of(place, source, part):
    tree = {"name": "a", "data": {"source": str(source), "part": part}}
    return Run(place, validate(tree, "a test"))


@pytest.mark.parametrize(
    ("write", "part", "least"),
    [
        (pictures, 40, 4),
        (pictures, 70, 3),
        (pictures, 60, 3),
        (tabled, 50, 3),
        (archives, 40, 3),
        (tables, 10, 3),
    ],
)
def test_a_piece_alone_is_the_piece_among_all(tmp_path, write, part, least):
    write(tmp_path / "whole")
    whole = run_of(tmp_path / "a", tmp_path / "whole", part)
    shares = Pieces(whole)
    missing = list(shares.missing())
    assert len(missing) == least
    for share in missing:
        shares.make(share)
        alone = tmp_path / f"alone-{share}"
        files = shares.outside(share)
        for file in files:
            target = alone / file.relative_to(tmp_path / "whole")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        twin = run_of(tmp_path / f"b{share}", alone, part)
        Pieces(twin, partial=True).make(share)
        name = f"part-{share:05d}-000.parquet"
        assert file_digest(twin.data.path / name) == file_digest(whole.data.path / name), share
    assert len(files) < len(list((tmp_path / "whole").rglob("*.*"))), "the last needs less than all"


def test_where_nobody_knows_what_is_needed_all_is(tmp_path):
    np.savez(tmp_path / "one.npz", images=np.zeros((9, 4, 4), np.uint8))
    run = run_of(tmp_path / "a", tmp_path / "one.npz", 3)
    assert Pieces(run).outside(1) is None
    assert Assignments(run).outside("part") == []


def test_small_archives_are_all_needed(tmp_path):
    """Together they decide what the source holds."""
    (tmp_path / "few").mkdir()
    for archive in range(3):
        with tarfile.open(tmp_path / "few" / f"{archive}.tar", "w") as tar:
            info = tarfile.TarInfo("a.png")
            info.size = len(png(archive))
            tar.addfile(info, io.BytesIO(png(archive)))
    run = run_of(tmp_path / "a", tmp_path / "few", 3)
    assert excerpt.needed(open_source(run.config.data), 2, run.config.data) is None
