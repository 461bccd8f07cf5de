import pytest
from pydantic import ValidationError

from atoll.config import SampleConfig
from atoll.runs.chosen import GuidanceContents


def test_what_was_chosen_is_read_as_it_was_written():
    found = GuidanceContents(guidance=1.5, distances=((1.0, 3.0), (1.5, 2.0)))
    assert GuidanceContents.model_validate(found.facts()) == found
    with pytest.raises(ValidationError):
        GuidanceContents.model_validate({"guidance": 0.5, "distances": []})


@pytest.mark.parametrize(
    ("asked", "guidance", "extrapolate"),
    [
        ({"guidances": (1.0, 1.5), "extrapolate": 1.2}, 1.5, 1.2),
        ({"extrapolations": (1.0, 2.0), "guidance": 3.0}, 3.0, 2.0),
        ({"extrapolations": (1.0, 2.0), "guidances": (1.0, 1.5)}, 1.5, 2.0),
    ],
)
def test_only_what_was_open_is_settled(asked, guidance, extrapolate):
    choice = GuidanceContents(guidance=1.5, distances=(), extrapolate=2.0)
    settled = choice.settle(SampleConfig(steps=7, **asked))
    assert (settled.guidance, settled.extrapolate, settled.steps) == (guidance, extrapolate, 7)
    assert not settled.chooses
