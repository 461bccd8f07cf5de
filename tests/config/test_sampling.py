"""[sample] and [evaluate]."""

import pytest
from pydantic import ValidationError

from atoll.config import FEATURES, EvaluateConfig, SampleConfig, settings_digest


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("guidance", 0.5),
        ("temperature", 0.0),
        ("steps", 0),
        ("shift", 0.0),
        ("experts", []),
        ("strategy", "best"),
        ("solver", "midpoint"),
        ("guided", [0.0]),
        ("seed", -1),
        ("num", 0),
        ("model", "router"),
    ],
)
def test_samples_that_cannot_be_drawn(key, value):
    with pytest.raises(ValidationError, match=key):
        SampleConfig.model_validate({key: value})


def test_lists_of_a_recipe_are_tuples_so_that_settings_can_be_compared():
    config = SampleConfig.model_validate({"experts": [0, 2], "guided": [0.1, 0.9], "prompts": ["a"]})
    assert (config.experts, config.guided, config.prompts) == ((0, 2), (0.1, 0.9), ("a",))
    assert hash(config) == hash(SampleConfig(experts=(0, 2), guided=(0.1, 0.9), prompts=("a",)))


def test_a_batch_is_not_what_is_sampled():
    assert settings_digest(SampleConfig(batch=1, resident=2)) == settings_digest(SampleConfig())
    assert settings_digest(SampleConfig(tf32=True)) != settings_digest(SampleConfig())


@pytest.mark.parametrize(("name", "near"), [("clasifier", "classifier"), ("incepton", "inception")])
def test_features_that_are_nearly_right(name, near):
    with pytest.raises(ValidationError, match=f"no features '{name}'; did you mean '{near}'"):
        EvaluateConfig(features=(name,))


def test_features_are_named_owned_or_here(tmp_path):
    names = (*FEATURES, "owner/model", str(tmp_path))
    assert EvaluateConfig.model_validate({"features": list(names)}).features == names


@pytest.mark.parametrize(
    "tree", [{"num": 7}, {"bootstrap": 1}, {"reference": 15}, {"strategies": ["full", "x"]}]
)
def test_too_little_to_measure_is_refused(tree):
    with pytest.raises(ValidationError, match=next(iter(tree))):
        EvaluateConfig.model_validate(tree)
