"""[expert] and [router]: settings of all clusters and of some."""

import pytest
from pydantic import ValidationError

from atoll.config import ExpertConfig, RouterConfig, StartConfig, TrainConfig, operational

MIXED = ExpertConfig.model_validate(
    {"lr": 0.5, "override": [{"clusters": [1, 2], "lr": 0.25}, {"clusters": [4], "prediction": "noise"}]}
)


def test_named_clusters_have_their_own_and_all_others_the_common_settings():
    assert [MIXED.of_cluster(index).lr for index in range(5)] == [0.5, 0.25, 0.25, 0.5, 0.5]
    assert MIXED.of_cluster(4).prediction == "noise"
    assert MIXED.of_cluster(0) == ExpertConfig(lr=0.5)
    assert all(MIXED.of_cluster(index).override == () for index in range(5))


def test_a_size_in_an_override_replaces_what_the_common_one_filled_in():
    config = ExpertConfig.model_validate({"size": "S/2", "override": [{"clusters": [0], "size": "B/4"}]})
    assert (config.of_cluster(0).width, config.of_cluster(0).patch) == (768, (4, 4))
    assert (config.of_cluster(1).width, config.of_cluster(1).patch) == (384, (2, 2))


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"override": [{"clusters": [0], "lrr": 1.0}]}, "unknown key 'lrr'.*did you mean 'lr'"),
        ({"override": [{"clusters": [0, 1]}, {"clusters": [1]}]}, "names cluster 1 twice"),
        ({"override": [{"clusters": [0], "lr": -1.0}]}, r"in \[\[expert.override\]\]: 'lr' = -1.0"),
        ({"steps": 0}, "takes expert.init as it is"),
        ({"convert": "published"}, "give both or neither"),
        ({"init": "a", "convert": "exact", "path": "cosine"}, "velocity on the linear path"),
        ({"ema": 1.0}, "ema"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_mistakes_are_said(tree, words):
    with pytest.raises(ValidationError, match=words):
        ExpertConfig.model_validate(tree)


def test_how_a_machine_works_is_marked_and_what_is_learnt_is_not():
    marked = operational(ExpertConfig)
    assert {"micro_batch", "compile", "recompute", "parallel", "log_every", "save_every", "keep"} <= marked
    assert marked.isdisjoint({"steps", "batch", "lr", "ema", "optimiser", "prediction", "precision"})


def test_a_router_is_smaller_and_only_experts_may_take_no_step():
    assert RouterConfig().width < ExpertConfig().width
    assert ExpertConfig(steps=0, init="a").steps == 0
    for section in (TrainConfig, RouterConfig, StartConfig):
        with pytest.raises(ValidationError, match="steps"):
            section(steps=0)
