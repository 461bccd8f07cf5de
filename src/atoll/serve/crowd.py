"""The samples of one model: those that wait, those under way, and what of them is done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.sampling import parts, rows
from atoll.sampling.roster import Roster
from atoll.sampling.rows import Row, Rows, Stepped
from atoll.serve.limits import Limits
from atoll.serve.line import Line, Some
from atoll.serve.models import Model
from atoll.serve.tickets import Failed, Made, Progress, Provenance, Ticket, reason_of
from atoll.serve.turns import Turns, fair

Observe = Callable[[int, float], None]
"""Called with the rows of a step and its seconds."""
SMOOTHING = 0.9
"""Of the running mean of the seconds of a row's step."""


@dataclass
class Work:
    """What has been made of one request."""

    ticket: Ticket
    strategy: str
    certainty: float | None
    x_0: Tensor
    shares: NDArray[np.float32]
    way: Provenance | None
    left: int
    """Samples that are not done."""


class Crowd:
    """Steps the requests of one model; everything but the constructor is for the model's thread."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        ensemble = model.sampler.ensemble
        self.batch = model.sampler.defaults.batch
        self.rows: Rows[Ticket] = Rows(ensemble, self.batch)
        self.line = Line()
        self.works: dict[Ticket, Work] = {}
        self._waiting: list[Ticket] = []
        experts = ensemble.experts
        self.turns = Turns(experts.room if isinstance(experts, Roster) else None)
        self._pace = 0.0
        """Seconds of a row's step, on the average of late."""
        self.observers: list[Observe] = []

    def succeeded(self, model: Model) -> "Crowd":
        """An empty one for a model that takes this one's place; whoever watches it goes on watching."""
        crowd = Crowd(model, self.limits)
        crowd.observers, crowd._pace = self.observers, self._pace
        return crowd

    @property
    def busy(self) -> bool:
        """Whether anybody waits for it."""
        return bool(self.works or self._waiting)

    def add(self, ticket: Ticket) -> None:
        """Let a request wait for its turn."""
        self.line.add(ticket)
        self._waiting.append(ticket)

    def step(self) -> bool:
        """Let rows leave and join, and move those whose turn it is; whether there were any."""
        self._drop()
        self._admit()
        if not len(self.rows):
            return False
        chosen = self._chosen()
        since = time.perf_counter()
        stepped = self.rows.step(chosen)
        self._note(chosen, stepped)
        self._finish(chosen)
        self._observe(len(chosen), time.perf_counter() - since)
        return True

    def _observe(self, rows: int, seconds: float) -> None:
        pace = seconds / rows
        self._pace = SMOOTHING * self._pace + (1 - SMOOTHING) * pace if self._pace else pace
        for observe in self.observers:
            observe(rows, seconds)

    @property
    def waiting(self) -> int:
        """Samples that have not begun; for any thread."""
        return len(self.line)

    @property
    def loads(self) -> int:
        """How often an expert was loaded; for any thread."""
        experts = self.model.sampler.ensemble.experts
        return experts.loads if isinstance(experts, Roster) else 0

    def fail(self, reason: str) -> None:
        """Give everybody up."""
        for ticket in [*self.works, *self._waiting]:
            ticket.tell(Failed(reason))
        self.rows.leave(range(len(self.rows)))
        self.line, self.works, self._waiting = Line(), {}, []

    def seconds_left(self) -> float:
        """How long all that is accepted will take, as far as one can tell; for any thread."""
        samples = len(self.rows) + sum(ticket.request.num for ticket in self._waiting)
        return self._pace * samples * self.model.sampler.defaults.steps

    def _drop(self) -> None:
        """Let those go who were cancelled or have waited too long."""
        now = time.monotonic()
        for ticket in [*self.works, *self._waiting]:
            if ticket.cancelled:
                self._give_up([ticket], Failed("cancelled", cancelled=True))
            elif now > ticket.deadline:
                reason = f"not done within {self.limits.seconds:g} s; ask for fewer samples or steps"
                self._give_up([ticket], Failed(reason))

    def _give_up(self, tickets: Sequence[Ticket], failed: Failed) -> None:
        gone = set(tickets)
        for ticket in gone:
            self.line.drop(ticket)
            self.works.pop(ticket, None)
        self._waiting = [ticket for ticket in self._waiting if ticket not in gone]
        numbers = [number for number, row in enumerate(self.rows.rows) if row.owner in gone]
        if numbers:
            self.rows.leave(numbers)
        for ticket in gone:
            ticket.tell(failed)

    def _admit(self) -> None:
        """Begin what waits; nobody has more rows under way than one step could move."""
        for user in self.line.users():
            under_way = sum(row.owner.user == user for row in self.rows.rows)
            for some in self.line.take(user, self.limits.rows - under_way):
                try:
                    self.rows.join(self._begun(some))
                except Exception as error:  # what one asks for must not end the others
                    self._give_up([some.ticket], Failed(reason_of(error)))

    def _begun(self, some: Some) -> list[Row[Ticket]]:
        ticket, ensemble = some.ticket, self.model.sampler.ensemble
        if ticket not in self.works:
            self.works[ticket] = self._work(ticket)
            self._waiting.remove(ticket)
        return rows.started(ensemble, ticket, ticket.request, self.works[ticket].strategy, some.indices)

    def _work(self, ticket: Ticket) -> Work:
        ensemble, request = self.model.sampler.ensemble, ticket.request
        strategy, certainty = parts.resolve(ensemble, request)
        experts, num = len(ensemble.experts), request.num
        way = None
        if request.settings.provenance:
            times = tuple(move.t for move in rows.moves_of(ensemble, request))
            weights = np.zeros((len(times), num, experts), np.float32)
            apart, moved = (np.zeros(size, np.float32) for size in ((len(times), num), (num, experts)))
            way = Provenance(times, weights, apart, moved)
        shares = np.zeros((num, experts), np.float32)
        return Work(ticket, strategy, certainty, torch.zeros(num, *ensemble.shape), shares, way, num)

    def _chosen(self) -> list[int]:
        """Rows that move next: all of one user's; if there are several users, about a batch of all of them.

        Then a step is short, so that who wants one picture does not wait for those who want hundreds.
        """
        eligible = self.turns.eligible([row.expert for row in self.rows.rows])
        users = [self.rows.rows[number].owner.user for number in eligible]
        most = self.limits.rows if len(set(users)) == 1 else min(self.batch, self.limits.rows)
        return [eligible[place] for place in fair(users, most)]

    def _note(self, chosen: Sequence[int], stepped: Stepped) -> None:
        """Keep the way of those who want to know it, and show those who watch."""
        places: dict[Ticket, list[int]] = {}
        for place, number in enumerate(chosen):
            ticket = self.rows.rows[number].owner
            if ticket.watched or ticket.request.settings.provenance:
                places.setdefault(ticket, []).append(place)
        for ticket, own in places.items():
            self._note_one(self.works[ticket], [chosen[place] for place in own], own, stepped)

    def _note_one(self, work: Work, numbers: Sequence[int], places: Sequence[int], stepped: Stepped) -> None:
        own = [self.rows.rows[number] for number in numbers]
        indices = [row.index for row in own]
        if work.way is not None:
            asked = [row.at - 1 for row in own]
            work.way.weights[asked, indices] = stepped.weights[places].cpu().numpy()
            work.way.disagreement[asked, indices] = stepped.disagreement[places].cpu().numpy()
        if work.ticket.watched:
            slowest = min(row.at for row in own)
            work.ticket.tell(self._progress(work, slowest, len(own[0].moves), numbers, places, stepped))

    def _progress(
        self,
        work: Work,
        step: int,
        steps: int,
        numbers: Sequence[int],
        places: Sequence[int],
        stepped: Stepped,
    ) -> Progress:
        done = work.ticket.request.num - work.left
        if step % work.ticket.watched and step < steps:
            return Progress(step, steps, done)
        indices = [self.rows.rows[number].index for number in numbers]
        preview, shares = work.x_0.clone(), work.shares.copy()
        preview[indices] = stepped.x_0(places).cpu()
        shares[indices] = self.rows.shares(numbers).cpu().numpy()
        return Progress(step, steps, done, preview, shares)

    def _finish(self, chosen: Sequence[int]) -> None:
        """Let rows that have arrived go, and hand over requests that are complete."""
        done = [number for number in chosen if self.rows.rows[number].done]
        if not done:
            return
        x_0, shares = self.rows.x(done).cpu(), self.rows.shares(done).cpu().numpy()
        finished: dict[Ticket, list[int]] = {}
        for place, number in enumerate(done):
            finished.setdefault(self.rows.rows[number].owner, []).append(place)
        for ticket, places in finished.items():
            work, indices = self.works[ticket], [self.rows.rows[done[place]].index for place in places]
            work.x_0[indices], work.shares[indices] = x_0[places], shares[places]
            if work.way is not None:
                work.way.moved[indices] = self.rows.moved([done[place] for place in places]).cpu().numpy()
            work.left -= len(places)
        self.rows.leave(done)
        for ticket in finished:
            if not self.works[ticket].left:
                self._hand_over(self.works.pop(ticket))

    def _hand_over(self, work: Work) -> None:
        seconds = time.monotonic() - work.ticket.accepted
        work.ticket.tell(Made(work.x_0, work.shares, work.strategy, work.certainty, seconds, work.way))
