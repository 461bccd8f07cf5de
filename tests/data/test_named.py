"""An assignment from elsewhere is taken by name or id, in memory that does not grow with it."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll.config import PartitionConfig
from atoll.data.named import FileRule
from atoll.data.partition import make_rule
from atoll.data.parts import Parts
from atoll.data.rules import View
from atoll.errors import DataError


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet by id", "parquet by hex"])
def test_an_assignment_from_elsewhere(parts: Parts, tmp_path: Path, form: str) -> None:
    names = [name for part in parts.names for name in View(parts, part).names]
    ids = [bytes(raw) for part in parts.names for raw in parts.ids(part)]
    cluster = [int(identity[0]) % 3 for identity in ids]
    path = tmp_path / f"said.{form.split()[0]}"
    if form == "csv":
        path.write_text("name,cluster\n" + "".join(f"{a},{b}\n" for a, b in zip(names, cluster, strict=True)))
    elif form == "jsonl":
        path.write_text(
            "".join(f'{{"name": "{a}", "cluster": {b}}}\n' for a, b in zip(names, cluster, strict=True))
        )
    else:
        keys = ids if form.endswith("by id") else [identity.hex() for identity in ids]
        pq.write_table(pa.table({"id": keys, "cluster": cluster}), path)
    rule = make_rule(parts, PartitionConfig(clusters=3, method="file", file=str(path)), 0, tmp_path / "work")
    found = np.concatenate([rule.assign(View(parts, part)).cluster for part in parts.names])
    assert found.tolist() == cluster
    assert not list((tmp_path / "work").iterdir())  # the table has no name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "name,group\nset.npz[0],1\n",
            "give a .csv, .jsonl or .parquet with columns 'cluster' and 'name' or 'id'",
        ),
        ("name,cluster\nset.npz[0],first\n", "cannot be read"),
        ("name,cluster\nset.npz[0],9\n", r"puts set.npz\[0\] in cluster 9; give clusters from 0 to 1"),
        ("name,cluster\nset.npz[0],0\n", r"does not say which cluster set.npz\[1\] belongs to"),
    ],
)
def test_a_wrong_assignment_is_told(parts: Parts, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "said.csv").write_text(text)
    config = PartitionConfig(clusters=2, method="file", file=str(tmp_path / "said.csv"))
    with pytest.raises(DataError, match=problem) as caught:
        make_rule(parts, config, 0, tmp_path / "work").assign(View(parts, parts.names[0]))
    assert "\n" not in str(caught.value)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for count in (5_000, 50_000):
        path = tmp_path / f"{count}.csv"
        path.write_text("name,cluster\n" + "".join(f"picture-{row:08d},{row % 3}\n" for row in range(count)))
        tracemalloc.start()
        FileRule(path, 3, tmp_path / "work")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 10,000 rows at once, of two objects and a tuple each; a table of all would be five times that.
    assert peaks[1] < 10_000 * 400
