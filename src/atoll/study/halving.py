"""Successive halving (Jamieson & Talwalkar, arXiv 1502.07943): many tried briefly, the better half longer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Candidate = TypeVar("Candidate")
Scores = Callable[[Sequence[Candidate], int], Sequence[float]]
"""What candidates come to, each with so many samples of training; less is better."""


@dataclass(frozen=True)
class Rung(Generic[Candidate]):
    """One round: who was tried, with how many samples of training, and what came of it."""

    samples: int
    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]

    def best(self, count: int) -> tuple[Candidate, ...]:
        """The first so many by score; of equal ones those that were named first."""
        order = sorted(range(len(self.scores)), key=lambda index: self.scores[index])
        return tuple(self.candidates[index] for index in order[:count])


def rungs(budget: int, count: int) -> list[int]:
    """The samples of each round: the last has the whole budget, each before it half of the next.

    What is best for half of the samples need not be so for all of them, and whoever wins is trained already.
    """
    return [max(1, budget >> (count - 1 - number)) for number in range(count)]


def search(
    candidates: Sequence[Candidate],
    budget: int,
    count: int,
    scores: Scores[Candidate],
    standing: Sequence[Candidate] = (),
) -> tuple[Candidate, list[Rung[Candidate]]]:
    """The best candidate after `count` rounds, and all rounds; one candidate needs no search.

    Those that stand were trained with all of the budget before and cost nothing: they are in every round.
    """
    left, history = tuple(candidates), list[Rung[Candidate]]()
    for samples in rungs(budget, count):
        if len(left) == 1:
            break
        rung = Rung(samples, left, tuple(scores(left, samples)))
        history.append(rung)
        better = rung.best(-(-len(left) // 2))
        left = (*better, *(each for each in standing if each not in better))
    best = history[-1].best(1) if history else left
    return best[0], history
