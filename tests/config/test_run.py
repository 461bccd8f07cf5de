"""A whole run: what its sections have from each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll.config import RunConfig

EXPERT = {"width": 64, "heads": 4, "depth": 3, "lr": 0.5, "batch": 16, "steps": 9}


def run(**tree):
    return RunConfig.model_validate({"name": "a", "expert": EXPERT, **tree})


def test_a_student_has_the_experts_network_but_not_their_training():
    student = run(student={"depth": 5}).student
    assert (student.width, student.heads, student.depth) == (64, 4, 5)
    assert student.lr == RunConfig(name="a", student={"steps": 1}).student.lr
    assert student.steps == 100_000


def test_a_size_of_the_student_is_not_mixed_with_the_experts():
    student = run(student={"size": "S/2"}).student
    assert (student.width, student.patch) == (384, (2, 2))


def test_a_start_is_trained_as_experts_are_but_for_as_long_as_it_says():
    settings = run(start={"batch": 32}).start_settings()
    assert (settings.lr, settings.batch, settings.steps) == (0.5, 32, 10_000)
    assert (settings.width, settings.override, settings.batch_of) == (64, (), "expert")


def test_the_rate_of_a_start_falls_only_if_it_says_so():
    falling = run(expert={"decay": "cosine", "warmup": 7}, start={})
    assert (falling.start_settings().decay, falling.start_settings().warmup) == ("none", 7)
    assert falling.expert.decay == "cosine"
    asked = run(expert={"decay": "cosine"}, start={"decay": "cosine"})
    assert asked.start_settings().decay == "cosine"


def test_experts_begin_once():
    for expert in ({"init": "a"}, {"override": [{"clusters": [0], "init": "a"}]}):
        with pytest.raises(ValidationError, match="leave out one of them"):
            run(start={}, expert=expert)


@pytest.mark.parametrize(
    ("others", "match"),
    [
        ({"encode": {"features": "start"}}, "needs clusters before the start"),
        ({"expert": {"adapter": {"rank": 2}}}, "for experts that are whole networks"),
        ({"expert": {"override": [{"clusters": [1], "adapter": {"rank": 2}}]}}, "that are whole networks"),
    ],
)
def test_a_start_is_told_clusters_only_where_experts_can_begin_so(others, match):
    told = {"start": {"condition": "cluster"}}
    assert run(**told).start.condition == "cluster"
    with pytest.raises(ValidationError, match=match):
        run(**told, **others)


def test_folders_to_begin_with_are_named_once_in_the_order_of_clusters():
    override = [{"clusters": [1], "init": "b"}, {"clusters": [2], "init": "a"}]
    config = run(partition={"clusters": 4}, expert={"override": override})
    assert config.inits() == ["b", "a"]
    assert run().inits() == []
    assert run(partition={"clusters": 3}, expert={"init": "a"}).inits() == ["a"]


@given(st.integers(1, 40), st.integers(1, 100))
def test_the_batch_of_a_monolith_is_shared_and_nobody_gets_nothing(clusters, batch):
    config = run(partition={"clusters": clusters}, expert={"batch": batch, "batch_of": "monolith"})
    share = config.expert_for(0).batch
    assert share == max(1, batch // clusters)
    assert config.expert_for(clusters - 1).batch_of == "expert", "it is divided once"


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0], [1], [2], [3]], [[0, 2]]])
def test_sites_name_each_cluster_once(groups):
    with pytest.raises(ValidationError, match="each cluster 0 to 2 once"):
        run(partition={"clusters": 3}, student={"sites": {"clusters": groups}})


def test_sites_in_any_order_will_do():
    config = run(partition={"clusters": 3}, student={"sites": {"clusters": [[2, 0], [1]]}})
    assert config.student.sites.clusters == ((2, 0), (1,))


def test_an_override_of_a_cluster_that_is_not_there():
    with pytest.raises(ValidationError, match="names cluster 2, but this run has clusters 0 to 1"):
        run(partition={"clusters": 2}, expert={"override": [{"clusters": [2]}]})


@pytest.mark.parametrize("wrong", ["three", 3, ["a"]])
def test_what_is_no_section_is_refused_as_such(wrong):
    for section in ("student", "start", "expert"):
        with pytest.raises(ValidationError, match=section):
            run(student={}, start={}, **{section: wrong}) if section == "expert" else run(**{section: wrong})
