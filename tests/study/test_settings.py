"""What a study's file may say, and what it may not."""

import pytest
from pydantic import ValidationError

from atoll.study.settings import BudgetConfig, StudyConfig

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


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"start": [0.95]}, "from 0 to below 0.95"),
        ({"adapter": [2]}, "needs a start"),
        ({"shared": 1.0}, "less than 1"),
        ({"router": -0.1}, "greater than or equal to 0"),
    ],
)
def test_a_budget_that_leaves_nothing_is_refused(budget, reason):
    with pytest.raises(ValidationError, match=reason):
        BudgetConfig.model_validate({"samples": [100], **budget})
