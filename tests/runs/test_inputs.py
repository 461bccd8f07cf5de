import pytest

from atoll.config import RunConfig, validate
from atoll.errors import ConfigError, DataError
from atoll.runs import Run, inputs


def test_what_an_expert_is_made_from(prepared):
    run = prepared()
    assert inputs.expert_from(run, 0).keys() == {"seed", "settings", "condition", "data"}
    assert inputs.expert_from(run, 0)["data"] != inputs.expert_from(run, 1)["data"]
    operation = prepared("expert.micro_batch=2", "expert.log_every=7", name="other")
    assert inputs.expert_from(operation, 0) == inputs.expert_from(run, 0)
    trained = prepared("expert.lr=0.5", name="third")
    assert inputs.expert_from(trained, 0)["settings"] != inputs.expert_from(run, 0)["settings"]


def test_what_an_expert_begins_with(finished, prepared):
    assert inputs.beginning(prepared(), 0) is None
    begun = prepared(f"expert.init='{finished.expert(1).path}'", name="begun")
    assert inputs.expert_from(begun, 0)["init"] == finished.expert(1).digest
    nowhere = prepared("expert.init='nowhere'", name="nowhere")
    with pytest.raises(ConfigError, match="holds no finished expert"):
        inputs.expert_from(nowhere, 0)


def test_what_all_begin_with_is_trained_as_experts_are(prepared):
    run = prepared("start.steps=3", "start.batch=4")
    settings = run.config.start_settings()
    assert (settings.steps, settings.batch, settings.lr, settings.width) == (3, 4, 1e-2, 16)
    other = prepared("start.steps=4", "start.batch=4", name="other")
    assert inputs.start_from(other)["settings"] != inputs.start_from(run)["settings"]


def test_experts_begin_once():
    with pytest.raises(ConfigError, match=r"\[start\] or with expert.init"):
        validate({"name": "a", "start": {}, "expert": {"init": "b"}}, "a test")


def test_files_of_a_partition_must_be_there(tmp_path, prepared):
    run = prepared("partition.method=file", "partition.file='gone.csv'")
    with pytest.raises(DataError, match=r"gone\.csv"):
        inputs.partition_from(run)
    with pytest.raises(DataError, match="holds no finished partition"):
        inputs.like_stage(str(tmp_path))


def test_a_run_without_a_student_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no \[student\]"):
        inputs.student_settings(Run(tmp_path, RunConfig(name="a")).config)
