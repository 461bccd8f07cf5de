"""The rule of `encode.features = "auto"`: what it chooses, and that it says so."""

import pytest

from atoll.config import RunConfig, grouping


def run(**tree):
    return RunConfig.model_validate({"name": "a", **tree})


@pytest.mark.parametrize(
    ("tree", "features"),
    [
        ({}, "pixels"),
        ({"start": {}}, "pixels"),
        ({"start": {}, "encode": {"features": "start"}}, "start"),
        ({"encode": {"features": "owner/model"}}, "owner/model"),
    ],
)
def test_what_is_chosen(tree, features):
    config = run(**tree)
    assert grouping.chosen(config) == features
    assert config.grouped_by_start == (features == "start")


def test_the_choice_is_explained_and_better_features_are_named():
    assert "'start' may do better" in str(grouping.reason(run(start={})))
    assert "a vision model may tell more" in str(grouping.reason(run()))


@pytest.mark.parametrize(
    "tree",
    [
        {"encode": {"features": "pixels"}},
        {"partition": {"clusters": 1}},
        {"partition": {"method": "random"}},
        {"partition": {"like": "folder"}},
    ],
)
def test_where_nothing_was_chosen_nothing_is_said(tree):
    assert grouping.reason(run(start={}, **tree)) is None
