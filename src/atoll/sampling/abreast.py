"""Rows asked abreast: each core follows some of them through a whole network, alone.

Cores that share every product meet at its end, many times a step: small products do not pay for that, and
beside another program all wait for the one whose core was taken. Rows do not wait for each other, so that
cores meet once a step, whatever the size of products.
"""

import contextlib
import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from atoll import threads
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster

Question = TypeVar("Question")
Answer = TypeVar("Answer")

LEAST = 1e6
"""Multiplications of a product: below it Python, of which one thread runs at a time, takes as long."""
UNEVEN = 1.15
"""So much more than the mean may one core have to do before cores rather share products."""
ENOUGH = 2
"""Batches for each core, whatever their sizes, so that none of them waits for another for long."""
AHEAD = 2
"""Questions for each member that are on their way while an answer is waited for."""


@dataclass(frozen=True)
class Crew:
    """Who answers questions: so many at once, each about at most so many rows and with so many threads."""

    members: int
    rows: int
    threads: int | None = None
    """Of each member; None leaves them as they are."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator["Crew"]:
        """Meanwhile this thread has as many threads for its own products as each of the others."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield self
        finally:
            torch.set_num_threads(before)

    def ask(self, answer: Callable[[Question], Answer], questions: Iterable[Question]) -> Iterator[Answer]:
        """Answers in the order of the questions; only a few are held at a time."""
        if self.members == 1:
            yield from map(answer, questions)
            return
        pool = _pool(self.members)
        asked: deque[Future[Answer]] = deque()
        for question in questions:
            asked.append(pool.submit(self._alone, answer, question))
            if len(asked) > AHEAD * self.members:
                yield asked.popleft().result()
        while asked:
            yield asked.popleft().result()

    def _alone(self, answer: Callable[[Question], Answer], question: Question) -> Answer:
        torch.set_num_threads(self.threads or 1)
        with torch.inference_mode():
            return answer(question)


def crew(ensemble: Ensemble, rows: int, most: int, *, several: bool = True, among: int = 1) -> Crew:
    """Who answers about so many rows, at most `most` of them at once; `several` experts may be asked.

    As many as the user, a launcher or the machine grants threads, on a CPU. One alone where there is too
    little to do, and where an expert may have to make room for another. `among` experts have the rows
    between them, so that each product is of fewer.
    """
    if ensemble.product is None or ensemble.device.type != "cpu":
        return Crew(1, most)
    granted, once = threads.granted(), min(rows, most)
    share = math.ceil(once / granted)
    paying = threads.useful(once * ensemble.product)
    uneven = share * granted > UNEVEN * once and paying >= granted
    own = min(share, math.ceil(once / among)) * ensemble.product
    if granted == 1 or uneven or own < LEAST or (several and _scarce(ensemble)):
        return Crew(1, most, granted if threads.chosen() else min(granted, paying))
    members = math.ceil(once / share)
    return Crew(members, share, min(granted // members, threads.useful(share * ensemble.product)))


def followers(ensemble: Ensemble, sizes: Sequence[int]) -> Crew:
    """Who follows batches of these sizes that keep an expert each: every core its own, from noise to data.

    Then cores never meet, and nobody's few rows are shared out. One after the other where there are too few
    batches for cores to end together, where one is too little to do and where experts have to make room.
    """
    granted = threads.granted()
    if ensemble.product is None or ensemble.device.type != "cpu" or granted == 1 or _scarce(ensemble):
        return Crew(1, 0)
    enough = len(sizes) >= ENOUGH * granted and sum(sizes) * ensemble.product >= len(sizes) * LEAST
    return Crew(granted, 0, 1) if enough else Crew(1, 0)


def _scarce(ensemble: Ensemble) -> bool:
    """Whether there are experts that wait on disk."""
    return isinstance(ensemble.experts, Roster) and ensemble.experts.room < len(ensemble.experts)


@functools.lru_cache(maxsize=1)
def _pool(members: int) -> ThreadPoolExecutor:
    """Threads for all ensembles of this process."""
    return ThreadPoolExecutor(members, "expert")
