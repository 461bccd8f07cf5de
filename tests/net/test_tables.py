"""Rows keep a task as the machine of leases left it."""

from hypothesis import given
from hypothesis import strategies as st

from atoll.net.leasing import Task
from atoll.net.tables import TaskRow

TASKS = st.builds(
    Task,
    state=st.sampled_from(["open", "leased", "suspect", "accepted"]),
    fence=st.integers(0, 9),
    holder=st.text(max_size=4),
    heard=st.floats(0, 1e9),
    deadline=st.floats(0, 1e9),
    candidate=st.text(max_size=4),
    failed=st.frozensets(st.text(max_size=4), max_size=3),
)


@given(TASKS)
def test_a_row_is_the_task(task):
    row = TaskRow(failed=[])
    row.task = task
    assert row.task == task


def test_a_task_comes_back_from_every_database(database):
    task = Task("suspect", 3, "lease", 1.7e9 + 0.25, 1.8e9, "", frozenset({"b", "a"}))
    with database.writing() as session:
        row = TaskRow(key="k", copy=0, unit={}, digest="0" * 64, name="n", stage="s", role="r", created=0.0)
        row.failed = []
        row.task = task
        session.add(row)
    with database.reading() as session:
        assert session.query(TaskRow).one().task == task
