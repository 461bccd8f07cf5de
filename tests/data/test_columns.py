"""Columns are read by their buffers as pyarrow would read them."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import columns


@given(
    st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=40), st.integers(0, 3), st.integers(1, 7)
)
def test_whole_numbers_are_read_by_their_buffers(values, skipped, size):
    """With and without missing ones, in chunks that begin anywhere in their buffers."""
    whole = pa.array(values, pa.int32())
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    column = pa.chunked_array(chunks, pa.int32()).slice(skipped)
    expected = [-1 if value is None else value for value in values[skipped:]]
    assert columns.integers(column).tolist() == expected
