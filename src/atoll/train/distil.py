"""From many experts to one model: every student that the recipe asks for."""

from atoll.runs import Run, Stage
from atoll.train import student


def distil(run: Run, *, start_over: bool = False) -> list[Stage]:
    """Train the students of a run that are not finished yet, one after the other."""
    student.settings(run)
    return [student.dense(run, start_over=start_over)]
