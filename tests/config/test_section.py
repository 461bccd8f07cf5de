"""A group of settings."""

import pytest
from pydantic import ValidationError

from atoll.config import Section


class Colours(Section):
    """Some settings."""

    red: int = 1
    """How red."""
    share: float = 0.5


def test_it_is_frozen_and_equal_by_value():
    colours = Colours(red=2)
    with pytest.raises(ValidationError, match="frozen"):
        colours.red = 3  # type: ignore[misc]
    assert colours == Colours(red=2)
    assert len({colours, Colours(red=2), Colours()}) == 2


@pytest.mark.parametrize("tree", [{"rde": 1}, {"red": "1"}, {"red": 1.0}, {"red": True}, {"share": "0.5"}])
def test_unknown_keys_and_other_types_are_refused(tree):
    with pytest.raises(ValidationError):
        Colours.model_validate(tree)


def test_a_whole_number_is_a_number_and_docstrings_are_descriptions():
    assert Colours.model_validate({"share": 1}).share == 1.0
    assert Colours.model_fields["red"].description == "How red."
