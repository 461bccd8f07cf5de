"""Experts asked abreast: each on a core of its own, where their products are too small to be shared by cores.

Small products do not pay for a second thread, and a step that asks many experts about a few rows each is made
of small products. But experts do not wait for each other: two of them can be asked at once.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from atoll import threads
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@functools.lru_cache(maxsize=1)
def _pool(cores: int) -> ThreadPoolExecutor:
    """One thread for each core, for all ensembles of this process."""
    return ThreadPoolExecutor(cores, "expert")


def pays(ensemble: Ensemble, questions: int, rows: int) -> bool:
    """Whether several experts are better asked at once, the largest about so many rows.

    Not on a GPU, not where cores share the products of one expert or somebody has said how many threads
    there are, and not where an expert may have to make room for another.
    """
    if questions < 2 or ensemble.product is None or ensemble.device.type != "cpu" or threads.chosen():
        return False
    experts = ensemble.experts
    if isinstance(experts, Roster) and experts.room < len(experts):
        return False
    return threads.cores() > 1 and threads.useful(rows * ensemble.product) == 1


def abreast(ask: Callable[[Question], Answer], questions: Iterable[Question]) -> Iterator[Answer]:
    """Answers in the order of the questions, as many at once as there are cores."""

    def alone(question: Question) -> Answer:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return ask(question)

    return _pool(threads.cores()).map(alone, questions)
