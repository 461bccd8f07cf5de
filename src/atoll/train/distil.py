"""From many experts to one model: every student that the recipe asks for."""

from atoll.runs import Run, Stage
from atoll.train import few_step, rounds, student


def distil(run: Run, *, start_over: bool = False) -> list[Stage]:
    """Train the students of a run that are not finished yet, one after the other."""
    config = student.settings(run)
    dense = student.dense if config.sites is None else rounds.all_rounds
    stages = [dense(run, start_over=start_over)] if config.steps else []
    if config.few is not None:
        stages.append(few_step.few_step(run, start_over=start_over))
    return stages
