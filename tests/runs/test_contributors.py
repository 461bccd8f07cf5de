"""The list of who made a run, at rest."""

import pytest

from atoll.errors import CorruptError
from atoll.runs.contributors import (
    CONTRIBUTORS,
    Contributor,
    Contributors,
    read_contributors,
    write_contributors,
)


def test_it_is_read_as_it_was_written_and_nothing_else_is(tmp_path):
    assert read_contributors(tmp_path) is None
    people = (Contributor(account="a" * 64, units=3, audits=1, credit=700, stages=("expert 0",)),)
    listed = Contributors(run="b" * 64, coordinator="c" * 64, entries=9, people=people, statement="{}")
    write_contributors(tmp_path, listed)
    assert read_contributors(tmp_path) == listed
    (tmp_path / CONTRIBUTORS).write_text('{"version": 1, "run": "x"}')
    with pytest.raises(CorruptError, match="damaged"):
        read_contributors(tmp_path)
