from atoll.config import validate
from atoll.runs import edges


def config(**sections):
    return validate({"name": "a", "partition": {"clusters": 2}, **sections}, "a test")


def test_a_lone_expert_has_no_router():
    assert edges.of_samples(config(partition={"clusters": 1}), 0) == ["expert 0"]
    assert edges.of_samples(config(), 0) == ["expert 0", "expert 1", "router"]
    assert edges.of_samples(config(student={}, sample={"model": "student"}), 0) == ["student"]


def test_who_samples_away_from_the_start_reads_it():
    guided = {"sample": {"against": "start", "guidance": 2.0}}
    assert edges.of_samples(config(start={}, **guided), 0) == ["expert 0", "expert 1", "router", "start"]
    assert edges.of_samples(config(expert={"init": "folder"}, **guided), 0)[-1] == "init 0"
    adapters = {"expert": {"adapter": {"rank": 2, "base": "start"}}, "start": {}}
    assert edges.of_samples(config(**adapters, **guided), 0).count("start") == 1
    assert "start" in edges.of_report(config(start={}, **guided), 0)


def test_experts_begin_with_the_start_or_with_another_expert():
    assert edges.of_expert(config(), 1) == ["cluster 1"]
    assert edges.of_expert(config(start={}), 1) == ["cluster 1", "start"]
    assert edges.of_expert(config(expert={"init": "folder"}), 1) == ["cluster 1", "init 0"]


def test_a_student_reads_what_it_begins_with():
    begun = edges.of_student(config(start={}, student={"init": "start"}), 0)
    assert begun == ["expert 0", "expert 1", "router", "cluster 0", "cluster 1", "start"]
    few = edges.of_few(config(start={}, student={"init": "start", "few": {"init": "start"}}), 0)
    assert few == [*begun, "student"]
    assert "drawn 0" in edges.of_student(config(student={"data": "drawn"}), 0)


def test_a_report_shows_the_students_that_there_are():
    shown = edges.of_report(config(student={"few": {}}), 0)
    assert shown == ["samples", "expert 0", "expert 1", "router", "student", "few-step"]


def test_clusters_by_the_start_come_after_it():
    grouped = config(start={}, encode={"features": "start"})
    assert edges.of_start(grouped, 0) == ["pool"]
    assert edges.of_features(grouped, 0) == ["data", "start"]
    assert edges.of_partition(grouped, 0) == ["data", "features"]
    imported = config(expert={"init": "folder"}, encode={"features": "start"})
    assert edges.of_features(imported, 0) == ["data", "init 0"]
    alone = config(start={}, encode={"features": "start"}, partition={"clusters": 1})
    assert edges.of_partition(alone, 0) == ["data"]
    assert edges.of_start(alone, 0) == ["cluster 0"]
