"""Columns of Arrow tables as arrays, by their buffers: what pyarrow offers for it copies, or loads pandas."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def as_array(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as an array: numbers as int64, fixed-size binary as rows of bytes, the rest as objects."""
    if pa.types.is_integer(column.type):
        return integers(column)
    if pa.types.is_fixed_size_binary(column.type):
        return np.concatenate([fixed_bytes(chunk) for chunk in column.chunks])
    return np.array(column.to_pylist(), dtype=object)


def integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A column of whole numbers, -1 where there is none.

    By its buffers: whatever else pyarrow offers loads pandas first, where it is installed, for a second.
    """
    chunks = [_integers(chunk) for chunk in column.cast(pa.int64()).chunks]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)


def _integers(chunk: pa.Array) -> NDArray[np.int64]:
    end, (valid, numbers) = chunk.offset + len(chunk), chunk.buffers()
    values = np.frombuffer(numbers, np.int64)[chunk.offset : end] if len(chunk) else np.zeros(0, np.int64)
    if valid is None:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[chunk.offset : end]
    return np.where(bits, values, -1)


def fixed_bytes(chunk: pa.Array) -> NDArray[np.uint8]:
    """The bytes of an array of fixed-size binary, one row each, without a copy."""
    width = chunk.type.byte_width
    buffer = np.frombuffer(chunk.buffers()[1], np.uint8) if len(chunk) else np.zeros(0, np.uint8)
    return buffer[chunk.offset * width : (chunk.offset + len(chunk)) * width].reshape(len(chunk), width)
