"""Files of data work that are the same within rounding, and that are not."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

from atoll.net.verification import tolerance

SOURCE = np.random.default_rng(0)
FEATURES = SOURCE.standard_normal((50, 16)).astype(np.float32)
PIXELS = SOURCE.integers(0, 256, (50, 64), dtype=np.uint8)


def changed(array, share: float, by: int):
    flat = array.copy().reshape(-1)
    flat[: int(share * flat.size)] ^= by
    return flat.reshape(array.shape)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (FEATURES, FEATURES, True),
        (FEATURES, FEATURES * (1 + 1e-3), True),
        (FEATURES, FEATURES.astype(np.float16).astype(np.float32), True),
        (FEATURES, FEATURES + 0.1 * SOURCE.standard_normal(FEATURES.shape).astype(np.float32), False),
        (FEATURES, FEATURES * 1.03, False),
        (FEATURES, -FEATURES, False),
        (FEATURES, FEATURES[:-1], False),
        (FEATURES, FEATURES.astype(np.float64), False),
        (FEATURES, np.full_like(FEATURES, np.nan), False),
        (np.zeros(3, np.float32), np.zeros(3, np.float32), True),
        (np.zeros(3, np.float32), np.ones(3, np.float32), False),
        (PIXELS, changed(PIXELS, 0.005, 1), True),
        (PIXELS, changed(PIXELS, 0.005, 64), False),
        (PIXELS, changed(PIXELS, 0.05, 1), False),
        (np.arange(1000), np.where(np.arange(1000) < 5, 7, np.arange(1000)), True),
        (np.arange(1000), np.arange(1000) + 1, False),
        (np.array(["a"]), np.array(["a"]), True),
        (np.array(["a"]), np.array(["b"]), False),
    ],
)
def test_arrays(tmp_path, left, right, same):
    np.save(tmp_path / "a.npy", left)
    np.save(tmp_path / "b.npy", right)
    assert tolerance.alike(tmp_path / "a.npy", tmp_path / "b.npy") == same


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"fid": 10.0, "num": 5}, {"fid": 10.2, "num": 5}, True),
        ({"fid": 10.0}, {"fid": 12.0}, False),
        ({"fid": 10.0}, {"fid": 10.0, "more": 1}, False),
        ({"a": [1, 2, None, "x", True]}, {"a": [1, 2, None, "x", True]}, True),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, False),
        ({"files": {"x": "a" * 64}}, {"files": {"x": "b" * 64}}, True),
        ({"files": {"x": "a" * 64}}, {"files": {"y": "a" * 64}}, False),
        ({"files": {"x": "a" * 64}}, {"files": {"x": "b" * 63}}, False),
        ({"made_from": {"data": "a" * 64}}, {"made_from": {"data": "b" * 64}}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": "x"}, {"a": "y"}, False),
        ({"a": None}, {"a": 0}, False),
    ],
)
def test_measurements(tmp_path, left, right, same):
    (tmp_path / "a.json").write_text(json.dumps(left))
    (tmp_path / "b.json").write_text(json.dumps(right))
    assert tolerance.alike(tmp_path / "a.json", tmp_path / "b.json") == same


def table(path, samples, dtype, labels=(0, 1)):
    rows = [sample.astype(dtype).tobytes() for sample in samples]
    columns = {
        "id": pa.array([b"i" * 32] * len(rows), pa.binary(32)),
        "sample": pa.array(rows, pa.binary(len(rows[0]))),
        "label": [labels[i % 2] for i in range(len(rows))],
        "sha256": pa.array([bytes([hash(row) % 256]) * 32 for row in rows], pa.binary(32)),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_tables_of_samples(tmp_path):
    a = table(tmp_path / "a.parquet", FEATURES, np.float16)
    b = table(tmp_path / "b.parquet", FEATURES * 1.002, np.float16)
    c = table(tmp_path / "c.parquet", -FEATURES, np.float16)
    d = table(tmp_path / "d.parquet", FEATURES, np.float16, labels=(1, 0))
    assert tolerance.alike(a, a)
    assert tolerance.alike(a, b, "float16")
    assert not tolerance.alike(a, b)
    assert not tolerance.alike(a, c, "float16")
    assert not tolerance.alike(a, d, "float16")


def test_tensors_and_other_files(tmp_path):
    save_file({"x": FEATURES}, tmp_path / "a.safetensors")
    save_file({"x": FEATURES * 1.001}, tmp_path / "b.safetensors")
    save_file({"y": FEATURES}, tmp_path / "c.safetensors")
    assert tolerance.alike(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert not tolerance.alike(tmp_path / "a.safetensors", tmp_path / "c.safetensors")
    (tmp_path / "a.bin").write_bytes(b"1")
    (tmp_path / "b.bin").write_bytes(b"2")
    assert tolerance.alike(tmp_path / "a.bin", tmp_path / "a.bin")
    assert not tolerance.alike(tmp_path / "a.bin", tmp_path / "b.bin")
    assert not tolerance.alike(tmp_path / "a.bin", tmp_path / "a.safetensors")


@pytest.mark.parametrize("suffix", ["npy", "parquet", "safetensors", "json"])
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, suffix, capsys):
    broken = tmp_path / f"broken.{suffix}"
    broken.write_bytes(b"\x93NUMPY nothing")
    assert tolerance.main([str(broken), str(broken)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_it_is_a_program(tmp_path):
    np.save(tmp_path / "a.npy", FEATURES)
    np.save(tmp_path / "b.npy", -FEATURES)
    assert tolerance.main([str(tmp_path / "a.npy")] * 2) == 0
    assert tolerance.main([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]) == 1
    assert tolerance.main([]) == 1


def test_pictures_are_alike_by_their_pixels(tmp_path):
    grey = PIXELS[:, :32]
    for name, values in (("a", grey), ("b", changed(grey, 0.005, 1)), ("c", changed(grey, 0.005, 64))):
        Image.fromarray(values).save(tmp_path / f"{name}.png")
    assert tolerance.alike(tmp_path / "a.png", tmp_path / "b.png")
    assert not tolerance.alike(tmp_path / "a.png", tmp_path / "c.png")
    (tmp_path / "d.png").write_bytes(b"no picture")
    with pytest.raises(tolerance.Unreadable):
        tolerance.alike(tmp_path / "a.png", tmp_path / "d.png")
