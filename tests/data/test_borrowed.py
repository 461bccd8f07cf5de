"""The absence of borrowed models is told."""

import builtins
import importlib
from typing import Any

import pytest

from atoll.data.borrowed import arithmetic, loading, require
from atoll.errors import DataError
from tests.pretend_gpu import GPU, pretended_gpu


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bfloat16"), ((7, 5), "float32")])
def test_float16_is_never_chosen_for_models_of_others(capability: tuple[int, int], expected: str) -> None:
    with pretended_gpu(capability):
        assert arithmetic("auto", GPU) == expected
        assert arithmetic("float16", GPU) == "float16"


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        DataError, match=r"encode.text needs the library transformers; pip install 'atoll\[hf\]'"
    ):
        require("transformers", "encode.text")


@pytest.mark.parametrize(
    "error", [OSError("no such\nmodel"), ValueError("no such"), builtins.KeyError("no such")]
)
def test_why_a_model_cannot_be_loaded_is_one_line(error: Exception) -> None:
    problem = "encode.text 'x' cannot be loaded: .*no such.*; give a Hub name"
    with pytest.raises(DataError, match=problem) as caught, loading("encode.text 'x'"):
        raise error
    assert "\n" not in str(caught.value)
