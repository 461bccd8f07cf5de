"""Files that are whole or not there, and names that stay inside."""

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import runs
from atoll.errors import CorruptError


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "a.json"
    runs.write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), runs.replacing(path) as beside:
        beside.write_text("half")
        raise RuntimeError
    assert runs.read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_digests_do_not_depend_on_order(value):
    assert runs.digest(dict(reversed(value.items()))) == runs.digest(value)
    assert runs.digest({**value, "another key": 1}) != runs.digest({**value, "another key": 2})


@pytest.mark.parametrize("name", ["weights.safetensors", "data-00000.parquet", "rounds/00001/a.json", "a b"])
def test_names_of_files_are_taken_as_they_are(name):
    assert runs.safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../a", "a/../../b", "/etc/passwd", "a//b", "a/", "./a", ".ssh/id", "a/.hidden"),
        *("C:\\a", "a\\b", "C:a", "a:stream", "a\0b", "a\nb", "a ", " a", "x" * 300),
        *(None, 3, ["a"], {"a": 1}),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(CorruptError, match="names a file"):
        runs.safe_name(name)


@given(st.text() | st.text(alphabet="./\\a:~ "))
def test_whatever_passes_stays_inside_on_any_system(name):
    try:
        runs.safe_name(name)
    except CorruptError:
        return
    for kind, root in ((PurePosixPath, "/x"), (PureWindowsPath, "C:/x")):
        inside = kind(root) / name
        assert inside.is_relative_to(kind(root))
        assert ".." not in inside.parts
        assert len(inside.relative_to(kind(root)).parts) == name.count("/") + 1
    assert Path(os.path.normpath(Path("/x") / name)).is_relative_to("/x")


def test_two_processes_of_one_number_do_not_share_a_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in two containers
    path = tmp_path / "x"
    with runs.replacing(path) as one, runs.replacing(path) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"  # the outer is the last
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
