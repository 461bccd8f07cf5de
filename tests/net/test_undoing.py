"""What is false is taken out with all that was built on it, by paths and digests, and by nothing else."""

from atoll.net import filing, undoing
from atoll.net.protocol import File, Numerics, Result, Unit
from atoll.net.tables import SubmissionRow, TaskRow
from tests.net.crowds import files_of
from tests.net.policed import CALM, Plan, World


def file(path, digit):
    return File(path=path, sha256=digit * 64, size=1)


def test_small_files_of_two_stages_may_have_the_same_bytes():
    result = Result(unit="0" * 64, outputs=(file("a/decisions.json", "1"),), numerics=Numerics())
    unit = Unit(run="0" * 64, name="u", stage="b", role="train", inputs=(file("b/decisions.json", "1"),))
    made = undoing.outputs(SubmissionRow(result=result.model_dump(mode="json")))
    assert not made & undoing.reads(TaskRow(unit=unit.model_dump(mode="json")))


def test_a_chain_of_results_goes_back_to_where_it_began(database, tmp_path):
    world = World(tmp_path, database, CALM, Plan(trainings=2, steps=40, segment=20))
    ann = world.machine()
    assert [ann.work().state for _ in range(4)] == ["checked"] * 4
    before = files_of(world.here)
    with database.writing() as session:
        first = session.query(SubmissionRow).order_by(SubmissionRow.number).first()
        row = session.get_one(TaskRow, first.task)
        stage = row.stage
        followers = undoing.undo(world.here, session, first, row, "a test", blame=False)
        assert [session.get_one(TaskRow, one.task).stage for one in followers] == [stage]
        left = filing.table_of(session)
    other = {path for path in before if not path.startswith(stage.replace(" ", "/"))}
    assert set(left) == other and other
    states = {(task.stage, task.unit["first"]): task.state for task in world.rows(TaskRow, role="train")}
    assert states[stage, 0] == "open" and states[stage, 20] == undoing.VOID
    assert ann.work().state == "checked", "it is done again"
    assert ann.work().state == "checked"
    assert files_of(world.here) == before
