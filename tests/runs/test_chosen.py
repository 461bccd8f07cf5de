import pytest
from pydantic import ValidationError

from atoll.runs.chosen import GuidanceContents


def test_what_was_chosen_is_read_as_it_was_written():
    found = GuidanceContents(guidance=1.5, distances=((1.0, 3.0), (1.5, 2.0)))
    assert GuidanceContents.model_validate(found.facts()) == found
    with pytest.raises(ValidationError):
        GuidanceContents.model_validate({"guidance": 0.5, "distances": []})
