"""Who goes in the next step: users share it evenly, and experts that must be fetched take turns."""

from collections.abc import Hashable, Sequence


def fair(users: Sequence[Hashable], most: int) -> list[int]:
    """At most so many rows, given the user of each: users share evenly, what one leaves goes to others.

    Everybody has one at least. Within a user the first rows go first, so that what has begun is finished
    before more is.
    """
    if len(users) <= most:
        return list(range(len(users)))
    rows: dict[Hashable, list[int]] = {}
    for number, user in enumerate(users):
        rows.setdefault(user, []).append(number)
    chosen, most = list[int](), max(most, len(rows))
    for left, (_, own) in enumerate(sorted(rows.items(), key=lambda item: len(item[1]))):
        share = (most - len(chosen)) // (len(rows) - left)
        chosen += own[:share]
    return sorted(chosen)


class Turns:
    """Which experts are at work, where not all of them can be held at once.

    An expert keeps its turn until its rows are done, or for `patience` steps if others wait: so each is
    loaded once for many rows and steps, and nobody waits for ever.
    """

    def __init__(self, room: int | None = None, patience: int = 64) -> None:
        """`room` experts are held at once; None is all of them."""
        self.room, self.patience = room, patience
        self._at_work: dict[int, int] = {}
        """Experts in turn, with the steps they have had."""
        self._last: dict[int, int] = {}
        """When each expert was last at work, counted in steps."""
        self._turn = 0

    def eligible(self, experts: Sequence[int | None]) -> list[int]:
        """The rows that go next, given the expert of each; None needs whomever the router names."""
        present = list(dict.fromkeys(expert for expert in experts if expert is not None))
        if self.room is None or len(present) <= self.room:
            self._at_work.clear()
            return list(range(len(experts)))
        self._rotate(present)
        return [n for n, expert in enumerate(experts) if expert is None or expert in self._at_work]

    def _rotate(self, present: Sequence[int]) -> None:
        """Let those go who have nothing to do or had their turn; who has waited longest comes in."""
        assert self.room is not None
        tired = [expert for expert, steps in self._at_work.items() if steps >= self.patience]
        kept = {k: n for k, n in self._at_work.items() if k in present and k not in tired}
        coming = sorted((k for k in present if k not in kept), key=lambda k: self._last.get(k, -1))
        kept.update(dict.fromkeys(coming[: self.room - len(kept)], 0))
        self._at_work = {expert: steps + 1 for expert, steps in kept.items()}
        self._turn += 1
        self._last.update(dict.fromkeys(self._at_work, self._turn))
