"""What becomes of fifty kinds of odd pictures is what the page says, and `prepare` accounts for each."""

from pathlib import Path

import pytest

from atoll.data.encode import prepare
from tests.data import odd
from tests.data.conftest import MakeRun

PAGE = Path(__file__).parents[2] / "docs" / "hardening.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    odd.write(tmp_path / "in")
    return tmp_path / "in"


def test_the_page_says_what_becomes_of_each(folder: Path) -> None:
    assert odd.table(folder) in PAGE.read_text(encoding="utf-8")


def test_every_file_is_accounted_for(folder: Path, make_run: MakeRun) -> None:
    contents = prepare(make_run(folder, data={"size": odd.SIZE, "max_skipped": 1.0})).contents
    became = list(odd.outcomes(folder).values())
    assert len(became) == 52
    assert contents.rows == sum(text.startswith("read") for text in became)
    assert contents.skipped == sum(text.startswith("skipped") for text in became)
    left_out = sum(text.startswith("left out, and counted") for text in became)
    assert sum(contents.understood.ignored.values()) == left_out
