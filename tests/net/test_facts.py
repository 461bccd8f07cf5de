"""Facts are read as they are, with what a coordinator adds; without what they must say they are refused."""

import pytest

from atoll.errors import CorruptError
from atoll.net import facts
from atoll.net.statements import Statement
from tests.net.past import honest


def test_every_kind_of_an_honest_history_is_read():
    kinds = {kind for kind, _, _ in honest().said}
    assert kinds <= set(facts.KINDS)
    for kind, content, at in honest().said:
        assert isinstance(facts.parsed(Statement(kind, "", at, {**content, "more": 1})), facts.KINDS[kind])


def test_kinds_that_no_rule_is_about_are_left_alone():
    assert facts.parsed(Statement("quarantine", "", 0.0, {"unit": "expert 1"})) is None


@pytest.mark.parametrize("kind", sorted(facts.KINDS))
def test_facts_without_what_they_must_say_are_refused(kind):
    with pytest.raises(CorruptError, match=f"a {kind} without what it must say"):
        facts.parsed(Statement(kind, "", 0.0, {}))


def test_copies_of_a_unit_have_fences_of_their_own():
    content = next(content for kind, content, _ in honest().said if kind == "lease")
    one, other = (facts.parsed(Statement("lease", "", 0.0, {**content, "copy": copy})) for copy in (0, 1))
    assert one.task != other.task
