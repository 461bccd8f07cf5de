import json

import pytest

from atoll import runs
from atoll.config import RunConfig
from atoll.errors import CorruptError, RunError, StaleError
from atoll.runs import Metrics, Run, Stage, inputs
from atoll.runs.records import Contents


def test_a_stage_is_done_only_after_finish(tmp_path):
    stage = Stage(tmp_path / "s")
    assert stage.begin({"seed": 1})
    (stage.path / "a").write_text("x")
    assert not stage.done
    with pytest.raises(RunError, match="not finished"):
        _ = stage.contents
    stage.finish({"seed": 1}, ["a"], Contents(rows=3))
    assert stage.done
    assert stage.here
    assert stage.contents.facts() == {"rows": 3}
    assert not stage.begin({"seed": 1}), "the same inputs: nothing to do"


def test_other_inputs_stop_and_name_what_changed(tmp_path):
    stage = Stage(tmp_path / "s")
    stage.begin({"seed": 1, "data": "a"})
    with pytest.raises(StaleError, match="other data"):
        stage.begin({"seed": 1, "data": "b"})
    stage.finish({"seed": 1, "data": "a"}, [], Contents())
    with pytest.raises(StaleError, match=r"other seed.*--start-over"):
        stage.begin({"seed": 2, "data": "a"})


def test_starting_over_removes_what_was_there(tmp_path):
    stage = Stage(tmp_path / "s")
    stage.begin({"seed": 1})
    (stage.path / "a").write_text("x")
    stage.finish({"seed": 1}, ["a"], Contents())
    assert stage.begin({"seed": 2}, start_over=True)
    assert not (stage.path / "a").exists()


def test_one_flipped_byte_is_found(tmp_path):
    stage = Stage(tmp_path / "s")
    stage.begin({})
    (stage.path / "a").write_bytes(b"hello")
    stage.finish({}, ["a"], Contents())
    assert stage.verify("a").read_bytes() == b"hello"
    (stage.path / "a").write_bytes(b"hellp")
    with pytest.raises(CorruptError, match="damaged"):
        stage.verify("a")
    (stage.path / "a").unlink()
    with pytest.raises(CorruptError, match="missing"):
        stage.verify("a")


def test_the_digest_of_a_stage_is_that_of_its_files(tmp_path):
    digests = []
    for name, text in (("one", "x"), ("two", "x"), ("three", "y")):
        stage = Stage(tmp_path / name)
        stage.begin({"from": name})
        (stage.path / "a").write_text(text)
        stage.finish({"from": name}, ["a"], Contents())
        digests.append(stage.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_run_is_what_its_folder_says(tmp_path):
    config = RunConfig(name="a", seed=3)
    recipe = tmp_path / "a.toml"
    recipe.write_text('name = "a"\nseed = 3')
    run = Run.create(config, recipe)
    assert Run.open(run.path).config == config
    assert (run.path / "run.toml").read_text() == recipe.read_text()
    with pytest.raises(RunError, match="not a run"):
        Run.open(tmp_path / "elsewhere")


def written_recipe(tmp_path, text):
    recipe = tmp_path / "a.toml"
    recipe.write_text(text)
    return recipe


def test_a_refused_command_changes_nothing(tmp_path):
    recipe = written_recipe(tmp_path, 'name = "a"')
    run = Run.create(RunConfig(name="a"), recipe)
    run.data.begin({"from": 1})
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    recipe.write_text('name = "a"\nseed = 3')
    with pytest.raises(StaleError, match=r"with other from; .* \(changed: seed was 0, is 3\)"):  # noqa: SIM117
        with Run.begun(RunConfig(name="a", seed=3), recipe) as again:
            again.data.begin({"from": 2})
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_refused_command_leaves_no_folder(tmp_path):
    recipe = written_recipe(tmp_path, 'name = "a"')
    with pytest.raises(RunError), Run.begun(RunConfig(name="a"), recipe) as run:
        raise RunError("there is no data")
    assert not run.path.exists()


def test_what_a_failed_command_has_made_stays_with_its_config(tmp_path):
    recipe = written_recipe(tmp_path, 'name = "a"\nseed = 3')
    with pytest.raises(OSError, match="full"), Run.begun(RunConfig(name="a", seed=3), recipe) as run:
        run.data.begin({"from": 1})
        raise OSError("the disk is full")
    assert Run.open(run.path).config.seed == 3


def test_a_damaged_resolved_json_is_named(tmp_path):
    run = Run.create(RunConfig(name="a"))
    (run.path / "resolved.json").write_text("{")
    with pytest.raises(CorruptError, match=r"resolved\.json is damaged"):
        Run.open(run.path)


def test_resolved_json_has_a_version_that_is_no_key_of_a_recipe(tmp_path):
    run = Run.create(RunConfig(name="a", seed=3))
    tree = json.loads((run.path / "resolved.json").read_text())
    assert tree.pop("version") == 1
    assert tree == run.config.model_dump(mode="json")
    for earlier in (tree, {**tree, "version": 1}):
        runs.write_json(run.path / "resolved.json", earlier)
        assert Run.open(run.path).config == run.config
    runs.write_json(run.path / "resolved.json", {**tree, "version": 2})
    with pytest.raises(RunError, match=r"resolved\.json was written by a newer Atoll .*upgrade atoll"):
        Run.open(run.path)


def test_metrics_drop_what_a_resumed_job_does_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, 0)
    for step in (2, 4, 6):
        metrics.write(step, loss=step / 10)
    metrics.close()
    path.write_text(path.read_text() + '{"step": 8, "lo')  # killed while writing
    resumed = Metrics(path, 4)
    resumed.write(6, loss=0.7)
    resumed.close()
    assert [(line["step"], line["loss"]) for line in runs.read_lines(path)] == [(2, 0.2), (4, 0.4), (6, 0.7)]


def test_metrics_refuse_what_is_not_a_number(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    with pytest.raises(AssertionError):
        metrics.write(1, loss=float("nan"))
    metrics.close()


def test_events_are_lines():
    run = Run.create(RunConfig(name="a"))
    run.event("one", x=1)
    run.event("two")
    lines = (run.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "two"]


def test_a_record_without_its_files_is_done_but_not_here(tmp_path):
    stage = Stage(tmp_path / "s")
    stage.begin({"seed": 1})
    assert not stage.here
    (stage.path / "a").write_text("x")
    stage.finish({"seed": 1}, ["a"], Contents())
    (stage.path / "a").unlink()
    assert stage.done
    assert not stage.here


def test_steps_by_share_are_the_steps_of_the_mean_expert(prepared):
    plain, shared = (
        prepared(name="plain"),
        prepared("expert.steps_of='share'", "expert.steps=1000", name="shared"),
    )
    assert plain.expert_settings(0) == plain.config.expert_for(0)
    sizes = shared.partition.contents.sizes
    steps = [shared.expert_settings(index).steps for index in range(3)]
    assert steps == [round(3000 * size / sum(sizes)) for size in sizes]
    assert abs(sum(steps) - 3000) <= 3
    same = prepared(f"expert.steps={steps[0]}", name="same")
    assert inputs.expert_from(same, 0) == inputs.expert_from(shared, 0), (
        "it is what counts, however it was said"
    )
