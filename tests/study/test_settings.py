"""What a study's file may say, and what it may not."""

import pytest
from pydantic import ValidationError

from atoll.study.settings import StudyConfig

STUDY = {
    "name": "parts",
    "recipe": "tiny.toml",
    "budget": {"samples": [100], "start": [0.5], "adapter": [0, 2]},
}


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"rank": 3}, "ranks of adapters are budget.adapter"),
        ({"base": "start"}, "their base is the start"),
        ({"targets": "everything"}, "attention"),
        ({"scale": -1.0}, "greater than 0"),
    ],
)
def test_adapters_that_cannot_be_are_refused_before_anything_is_done(said, match):
    with pytest.raises(ValidationError, match=match):
        StudyConfig.model_validate({**STUDY, "adapter": {"expert": {"adapter": said}}})


def test_what_adapters_are_but_for_their_rank():
    said = {"expert": {"lr": 0.5, "adapter": {"scale": 2.0}}}
    assert StudyConfig.model_validate({**STUDY, "adapter": said}).adapter_settings == {"scale": 2.0}
    assert StudyConfig.model_validate(STUDY).adapter_settings == {}
