"""A part is written whole or not at all, and says of itself what is in it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from atoll.data.encode import prepare
from atoll.data.parts import Encoded, Facts, Parts, PartWriter, features_path, read_facts, remove_partial
from atoll.data.samples import Sample, Skipped
from atoll.errors import CorruptError
from tests.data.conftest import MakeRun, pixels


def encoded(count: int, seed: int = 0) -> Encoded:
    values = pixels(count, seed=seed).transpose(0, 3, 1, 2).copy()
    samples = [Sample(str(index), value, "ab"[index % 2]) for index, value in enumerate(values)]
    return Encoded(samples, values, values.reshape(count, -1)[:, :5].astype(np.float16))


def test_row_groups_do_not_depend_on_the_batches(tmp_path: Path) -> None:
    whole = encoded(1203)
    for name, cuts in (("one", [0, 1203]), ("many", [0, 7, 499, 501, 1000, 1203])):
        with PartWriter(tmp_path / f"part-{name}.parquet") as writer:
            for low, high in itertools.pairwise(cuts):
                writer.add(Encoded(whole.samples[low:high], whole.values[low:high], whole.features[low:high]))
    one, many = ((tmp_path / f"part-{name}.parquet").read_bytes() for name in ("one", "many"))
    assert one == many
    np.testing.assert_array_equal(np.load(features_path(tmp_path / "part-one.parquet")), whole.features)


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on the way"), PartWriter(tmp_path / "part-0.parquet") as writer:
        writer.add(encoded(600))
        raise RuntimeError("on the way")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_skipped_samples_only(tmp_path: Path) -> None:
    with PartWriter(tmp_path / "part-0.parquet") as writer:
        writer.facts.skip(Skipped("a", "broken"))
    facts = read_facts(tmp_path / "part-0.parquet")
    assert (facts.rows, facts.skipped, facts.skipped_names) == (0, 1, [{"name": "a", "reason": "broken"}])


def test_facts_add_up() -> None:
    facts = Facts()
    values = np.array([[[1.0, 2.0]], [[3.0, 6.0]]], np.float32)
    for row in values:
        facts.add(Encoded([Sample("x", row, "b")], row[None], np.zeros((1, 1), np.float16)))
    assert (facts.rows, facts.bytes, facts.shape, facts.labels) == (2, 16, [1, 2], ["b"])
    assert (facts.sums, facts.squares, facts.values_per_channel) == ([12.0], [50.0], 4)


def test_a_damaged_part_is_told(tmp_path: Path, make_run: MakeRun) -> None:
    np.savez(tmp_path / "set.npz", images=pixels(9))
    run = make_run(tmp_path / "set.npz")
    prepare(run)
    for name in ("part-00000-000.parquet", "features-00000-000.npy"):
        path = run.data.path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(
            CorruptError, match=rf"{name} is damaged \(sha256 differs\); `atoll prepare RECIPE --start-over`"
        ):
            Parts(run.data).verify(name)
        path.write_bytes(whole)
    (run.data.path / "part-00000-000.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptError, match="is damaged; `atoll prepare RECIPE --start-over`"):
        read_facts(run.data.path / "part-00000-000.parquet")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".ids-x.partial").mkdir()
    for name in (".ids-x.partial/00000", ".part.7-ab.partial", "part.parquet"):
        (tmp_path / name).write_text("")
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["part.parquet"]
