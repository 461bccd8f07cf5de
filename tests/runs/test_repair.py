from pathlib import Path

import pytest
import typer

import atoll.cli  # noqa: F401 - adds the commands
from atoll.cli.options import app
from atoll.errors import CorruptError, RunError
from atoll.runs import Stage, graph, repair
from atoll.runs.records import ExpertContents

RUN = Path("runs") / "mine"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("data", "atoll prepare"),
        ("partition", "atoll partition"),
        ("partition/cluster-03", "atoll partition"),
        ("experts/03", "atoll expert 3"),
        ("experts/03/state", "atoll expert 3"),
        ("start", "atoll start"),
        ("router", "atoll router"),
        ("student", "atoll student"),
        ("few-step", "atoll student"),
        ("few-step/steps-008", "atoll student"),
        ("drawn/cluster-00", "atoll student"),
    ],
)
def test_every_part_has_its_command(folder, command):
    assert repair.command(RUN / folder) == command


def test_every_stage_has_one_that_is_a_command():
    """A stage that is added to the graph needs no line here."""
    for kind in graph.KINDS:
        command = repair.command(RUN / kind.folder.format(index=7))
        if kind.again or kind.adopts:  # `atoll run` makes them, whenever they are wanted
            assert command is None
        else:
            assert command is not None
            assert command.split()[1] in COMMANDS, kind.name


def test_a_part_of_a_stage_is_not_taken_for_another_stage(tmp_path):
    """Sites keep what they begin with in a folder of the student's that is called as a stage is."""
    (tmp_path / "resolved.json").write_text("{}")
    assert repair.command(tmp_path / "student" / "rounds" / "start") == "atoll student"
    assert repair.command(tmp_path / "student" / "rounds" / "00003" / "site-01") == "atoll student"
    assert repair.command(tmp_path / "start" / "state") == "atoll start"


def test_what_is_no_part_of_a_run():
    assert repair.command(Path("imported") / "dit") is None
    assert repair.advice(Path("imported") / "dit") == "delete imported/dit and make it again"


def test_damage_is_told_with_the_command_that_repairs_only_that(tmp_path):
    stage = Stage(tmp_path / "experts" / "02")
    stage.path.mkdir(parents=True)
    (stage.path / "weights").write_text("right")
    stage.finish({}, ["weights"], ExpertContents())
    (stage.path / "weights").write_text("wrong")
    with pytest.raises(CorruptError, match="is damaged .* `atoll expert 2 RECIPE --start-over` makes this"):
        stage.verify("weights")
    (stage.path / "weights").unlink()
    with pytest.raises(CorruptError, match="is missing; `atoll expert 2 RECIPE --start-over`"):
        stage.verify("weights")


def test_what_was_never_made_is_told_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(RunError, match="is not finished; `atoll router RECIPE` makes it"):
        _ = Stage(tmp_path / "router").record


def test_a_damaged_record_too(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "done.json").write_text("{")
    with pytest.raises(CorruptError, match="`atoll prepare RECIPE --start-over`"):
        _ = Stage(tmp_path / "data").record
