import io

import numpy as np
import pytest

from atoll.errors import reason


def test_advice_to_load_unsafely_reaches_nobody():
    """Whatever numpy says of an array of objects, or of a file that is none of its own."""
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    for data in (file.getvalue(), b"\x80\x04no such thing"):
        with pytest.raises(ValueError, match="allow_") as caught:
            np.load(io.BytesIO(data), allow_pickle=False)
        assert "allow_" in str(caught.value)
        assert reason(caught.value) == "it holds Python objects, which are not read: they could run code"


def test_one_line_and_never_nothing():
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(KeyError()) == "KeyError"
