"""From many experts to one model: every student that the recipe asks for."""

from atoll.runs import Run, Stage, graph
from atoll.train import rounds
from atoll.train import student as room


def student(run: Run) -> Stage:
    """The dense student: at once, or by rounds where the recipe has sites."""
    return room.dense(run) if room.settings(run).sites is None else rounds.all_rounds(run)


def distil(run: Run) -> list[Stage]:
    """Whatever of the students is not finished yet, one after the other."""
    return [node.make() for node in graph.of_command(run, "student")]
