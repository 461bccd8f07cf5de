"""The shape of errors."""

import pytest

from atoll.net.problems import Problem, Problems
from atoll.net.protocol import ProtocolError, parse


def test_an_error_is_read_as_it_was_written_and_nothing_else_is():
    problems = Problems(error=Problem(code="gap", message="go on from there", retry_after=3.0))
    assert parse(Problems, problems.model_dump_json().encode()) == problems
    with pytest.raises(ProtocolError, match="error.code"):
        parse(Problems, b'{"error": {"message": "why"}}')
