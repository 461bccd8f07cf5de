"""Whether two files of data work say the same within rounding: arrays, tables, tensors, measurements.

`python -m atoll.net.verification.tolerance LEFT RIGHT [TYPE_OF_SAMPLES]` ends with 0 if they do and with 1
if not; files of strangers are opened in this process and not in the coordinator's.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file

from atoll.errors import reason

RELATIVE = 0.02
"""||a - b|| over ||b|| of floats: encoders in half precision on other devices are that near."""
COSINE = 0.999
WHOLE = 0.01
"""The share of whole numbers, as pixels and assignments, that may differ, and those of pixels by one."""
BYTES = 1
"""How far pixels of the same place may be apart."""
DIGEST, FILES = re.compile(r"[0-9a-f]{64}"), ("files", "digests")
"""Digests, and under which names a record has those of its files."""
MEASURED = 0.05
"""Relative difference of a measured number in JSON."""


class Unreadable(ValueError):  # noqa: N818 - what a file is
    """A file that cannot be compared."""


def alike(left: Path, right: Path, dtype: str | None = None) -> bool:
    """Whether two files hold the same; samples that lie in tables as bytes are numbers of this type."""
    if left.suffix != right.suffix:
        return False
    one, other = dict(_columns(left, dtype)), dict(_columns(right, dtype))
    return one.keys() == other.keys() and all(near(one[name], other[name]) for name in one)


def _columns(path: Path, dtype: str | None) -> Iterator[tuple[str, Any]]:
    """What a file holds, by name."""
    try:
        if path.suffix == ".npy":
            yield "", np.load(path, allow_pickle=False)
        elif path.suffix == ".safetensors":
            yield from load_file(path).items()
        elif path.suffix == ".parquet":
            yield from _of_table(pq.read_table(path), dtype)
        elif path.suffix == ".png":
            with Image.open(path) as picture:
                yield "", np.asarray(picture)
        elif path.suffix == ".json":
            yield "", json.loads(path.read_bytes())
        else:
            yield "", path.read_bytes()
    except (OSError, ValueError, SafetensorError, pa.ArrowException, RecursionError) as error:
        raise Unreadable(f"{path.name} cannot be read ({reason(error)})") from None


def _of_table(table: pa.Table, dtype: str | None) -> Iterator[tuple[str, Any]]:
    for name in table.column_names:
        column = table[name].combine_chunks()
        if dtype is not None and name == "sha256":
            continue  # follows from the others
        if dtype is not None and name == "sample":
            yield name, np.frombuffer(b"".join(column.to_pylist()), np.dtype(dtype))
        elif pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            yield name, column.to_numpy(zero_copy_only=False)
        else:
            yield name, column.to_pylist()


def near(left: Any, right: Any, *, named: bool = False) -> bool:
    """Whether two values say the same within the tolerance of their kind.

    `named` are digests of files that are compared themselves; that a record has those of the files which came
    with it, whoever compares sees to.
    """
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return near_arrays(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        pairs = ((left[name], right.get(name), named or name in FILES) for name in left)
        return left.keys() == right.keys() and all(near(a, b, named=flag) for a, b, flag in pairs)
    if isinstance(left, bytes) and isinstance(right, bytes):
        return left == right
    if isinstance(left, str) or isinstance(right, str) or isinstance(left, bool) or isinstance(right, bool):
        return type(left) is type(right) and (left == right or (named and _are_digests(left, right)))
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        pairs = ((a, b, named) for a, b in zip(left, right, strict=False))
        return len(left) == len(right) and all(near(a, b, named=flag) for a, b, flag in pairs)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=MEASURED, abs_tol=1e-9)
    return left is None and right is None


def _are_digests(*words: str) -> bool:
    return all(DIGEST.fullmatch(word) for word in words)


def near_arrays(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Floats by their distance and angle; whole numbers by how many differ, pixels also by how much."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.kind not in "fiub":
        return bool(np.array_equal(left, right))
    if left.dtype.kind != "f":
        apart = left != right
        if left.dtype == np.uint8 and bool((np.abs(left.astype(int) - right) > BYTES).any()):
            return False
        return float(apart.mean() if apart.size else 0.0) <= WHOLE
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return bool(np.array_equal(left, right, equal_nan=True))
    a, b = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms == 0:
        return bool((a == b).all())
    close = float(np.linalg.norm(a - b)) <= RELATIVE * float(np.linalg.norm(b))
    return close and float(a @ b) >= COSINE * norms


def main(arguments: list[str]) -> int:
    """Compare two files."""
    try:
        left, right, *dtype = arguments
        same = alike(Path(left), Path(right), *dtype)
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
