"""Requests that wait, in turn: every user gets on with one as quickly as with many."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.serve.tickets import Ticket


class Some(NamedTuple):
    """Some samples of a request."""

    ticket: Ticket
    indices: range


@dataclass
class Line:
    """Samples that have not begun, first come first served among those of one user."""

    _users: dict[str, deque[Some]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(len(some.indices) for queue in self._users.values() for some in queue)

    def add(self, ticket: Ticket) -> None:
        """Put all samples of a request at the end of its user's queue."""
        self._users.setdefault(ticket.user, deque()).append(Some(ticket, range(ticket.request.num)))

    def users(self) -> list[str]:
        """Who waits."""
        return list(self._users)

    def take(self, user: str, most: int) -> Iterator[Some]:
        """At most so many samples of one user, oldest first."""
        queue = self._users.get(user, deque())
        while queue and most > 0:
            ticket, indices = queue.popleft()
            if len(indices) > most:
                queue.appendleft(Some(ticket, indices[most:]))
            yield Some(ticket, indices[:most])
            most -= len(indices)
        if not queue:
            self._users.pop(user, None)

    def drop(self, ticket: Ticket) -> None:
        """Forget what is left of a request."""
        queue = self._users.get(ticket.user, deque())
        kept = deque(some for some in queue if some.ticket is not ticket)
        if kept:
            self._users[ticket.user] = kept
        else:
            self._users.pop(ticket.user, None)
