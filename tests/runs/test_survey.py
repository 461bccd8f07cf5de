from atoll.runs.records import Contents
from atoll.runs.survey import survey
from tests.contracts.conftest import play, playground

__all__ = ["play", "playground"]


def names(nodes):
    return [node.name for node in nodes]


def finish(run, name, seed=0):
    stage = run.stage(name)
    stage.path.mkdir(parents=True, exist_ok=True)
    stage.finish({"seed": str(seed)}, [], Contents())


def test_nothing_is_there(play):
    state = survey(play())
    assert names(state.left) == ["one", "two", "last", "here"]
    assert not state.done
    assert not state.stale


def test_what_is_done_and_what_is_left(play):
    run = play()
    finish(run, "one")
    run.stage("two").begin({"seed": "0"})
    state = survey(run)
    assert names(state.done) == ["one"]
    assert names(state.left) == ["two", "last", "here"]


def test_other_inputs_and_all_that_follows(play):
    run = play(seed=1)
    finish(run, "one", seed=1)
    finish(run, "two", seed=0)
    for name in ("last", "here"):
        finish(run, name, seed=1)
    state = survey(run)
    assert names(state.done) == ["one"]
    assert names(state.stale) == ["two", "last", "here"]
    assert state.why["two"].endswith("two was made with other seed")
    assert state.why["last"].endswith("was made from two, which is made again")


def test_an_unfinished_stage_of_other_inputs_is_stale_too(play):
    run = play(seed=1)
    run.stage("one").begin({"seed": "0"})
    assert names(survey(run).stale) == ["one"]


def test_what_cannot_be_told_yet_is_left(play):
    """Somebody has removed the first stage: whether the others are still right is known once it is there."""
    run = play()
    for name in ("two", "last"):
        finish(run, name)
    state = survey(run)
    assert names(state.left) == ["one", "last", "here"]
    assert names(state.done) == ["two"]


def test_nothing_is_written(play):
    run = play()
    finish(run, "one")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    survey(run)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
