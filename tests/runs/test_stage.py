"""One folder of a run: opened, finished, refused, thrown away."""

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import CorruptError, RunError, StaleError
from atoll.runs import Stage, read_json
from atoll.runs.records import Contents
from atoll.runs.stage import DONE, STARTED

INPUTS = {"config": "a", "data": "b"}


def finished(folder, made_from=INPUTS, text="weights"):
    stage = Stage(folder)
    stage.begin(made_from)
    (folder / "file").write_text(text)
    stage.finish(made_from, ["file"], Contents.model_validate({"answer": 42}))
    return stage


def test_its_life_from_beginning_to_end(tmp_path):
    stage = Stage(tmp_path / "router")
    assert (stage.done, stage.here, stage.started) == (False, False, None)
    assert stage.begin(INPUTS)
    assert stage.started == INPUTS
    assert not stage.done
    assert stage.begin(INPUTS), "one that was interrupted goes on"
    whole = finished(stage.path)
    assert (whole.done, whole.here, whole.started) == (True, True, None)
    assert not (stage.path / STARTED).exists()
    assert not whole.begin(INPUTS)
    assert whole.contents.facts()["answer"] == 42


def test_the_record_has_the_digest_of_each_file(tmp_path):
    stage = finished(tmp_path / "router")
    expected = hashlib.sha256(b"weights").hexdigest()
    assert stage.record.files == {"file": expected}
    assert read_json(stage.path / DONE)["made_from"] == INPUTS
    assert stage.verify("file").read_text() == "weights"


def test_the_digest_of_a_stage_follows_its_files_not_its_inputs(tmp_path):
    one = finished(tmp_path / "one").digest
    assert finished(tmp_path / "two", {"config": "other"}).digest == one
    assert finished(tmp_path / "three", text="weightS").digest != one


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1)))
def test_all_inputs_that_differ_are_named_and_no_others(tmp_path, after):
    stage = Stage(tmp_path / "router")
    before = {"a": 0, "b": 1}
    stage.start(before)
    different = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    if not different:
        assert stage.begin(after)
        return
    with pytest.raises(StaleError) as caught:
        stage.begin(after)
    assert f"was made with other {', '.join(different)}; add --start-over" in str(caught.value)
    assert stage.started == before, "what is refused changes nothing"


def test_a_finished_stage_of_other_inputs_is_refused_until_one_starts_over(tmp_path):
    stage = finished(tmp_path / "router")
    with pytest.raises(StaleError, match="with other data;"):
        stage.begin({**INPUTS, "data": "c"})
    assert stage.done
    assert stage.begin({**INPUTS, "data": "c"}, start_over=True)
    assert not stage.done
    assert not (stage.path / "file").exists()


@pytest.mark.parametrize(
    ("folder", "command"),
    [("data", "atoll prepare"), ("experts/03", "atoll expert 3"), ("few-step", "atoll student")],
)
def test_what_is_not_finished_says_which_command_makes_it(tmp_path, folder, command):
    with pytest.raises(RunError, match=f"is not finished; `{command} RECIPE` makes it"):
        _ = Stage(tmp_path / folder).record


def test_missing_and_damaged_files_are_told_apart(tmp_path):
    stage = finished(tmp_path / "router")
    (stage.path / "file").write_text("weighty")
    with pytest.raises(CorruptError, match=r"file is damaged .*`atoll router RECIPE --start-over`"):
        stage.verify("file")
    (stage.path / "file").unlink()
    with pytest.raises(CorruptError, match="file is missing"):
        stage.verify("file")
    assert stage.done
    assert not stage.here


def test_a_file_that_the_record_does_not_name_is_not_trusted(tmp_path):
    stage = finished(tmp_path / "router")
    (stage.path / "other").write_text("weights")
    with pytest.raises(CorruptError, match="damaged"):
        stage.verify("other")


def test_clearing_a_link_leaves_what_it_points_to(tmp_path):
    stage = finished(tmp_path / "router")
    link = Stage(tmp_path / "link")
    link.path.symlink_to(stage.path)
    assert link.done
    link.clear()
    assert not link.path.exists()
    assert stage.here
    stage.clear()
    stage.clear()
    assert not stage.path.exists()
