"""What a newer program wrote is refused in words, and so is what has no version or other types."""

import pytest

from atoll.errors import CorruptError, RunError
from atoll.runs import write_json
from atoll.runs.parsing import VERSION, read_stamped, stamped, unstamped, validated, versioned
from atoll.runs.records import ExpertContents


def test_a_version_that_is_known_is_read():
    tree = {"version": VERSION, "a": 1}
    assert versioned(tree, "there") == tree


@pytest.mark.parametrize("version", [VERSION + 1, 10**30])
def test_a_newer_one_asks_for_an_upgrade(version):
    with pytest.raises(
        RunError, match=rf"there was written by a newer Atoll .*version {version}.*upgrade atoll"
    ):
        versioned({"version": version}, "there")


@pytest.mark.parametrize("value", [{}, {"version": True}, {"version": "1"}, {"version": 0}, [], None, 3])
def test_any_other_is_damaged(value):
    with pytest.raises(CorruptError, match=r"^there (is damaged|has no version)"):
        versioned(value, "there")


def test_types_are_taken_as_they_are():
    assert validated(ExpertContents, {"steps": 3}, "there") == ExpertContents(steps=3)
    for value in ({"steps": "3"}, {"steps": 3.5}, {"step": 3}, 3, {1, 2}):
        with pytest.raises(CorruptError, match="^there is damaged"):
            validated(ExpertContents, value, "there")


def test_a_stamp_comes_and_goes(tmp_path):
    write_json(tmp_path / "a.json", stamped({"a": 1}))
    assert '"version": 1' in (tmp_path / "a.json").read_text()
    assert read_stamped(tmp_path / "a.json") == {"a": 1}
    assert unstamped({"a": 1}, "there") == {"a": 1}, "from before there were versions"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"version": 2}, "upgrade atoll"),
        ({"version": None}, "no version that is known"),
        ([], "not an object"),
    ],
)
def test_a_stamp_that_is_not_ours_is_refused(tmp_path, value, message):
    write_json(tmp_path / "a.json", value)
    with pytest.raises(RunError, match=rf"a\.json .*{message}"):
        read_stamped(tmp_path / "a.json")
