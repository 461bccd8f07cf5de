"""Continuous batching: one thread steps the samples of all requests together; who comes joins the next step.

The event loop hands requests in and hears of them by their tickets; it never waits for the model.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from atoll.sampling.memory import give_back, keep
from atoll.sampling.request import Request
from atoll.serve.crowd import Crowd
from atoll.serve.limits import Limits
from atoll.serve.models import Model
from atoll.serve.tickets import Ticket, reason_of

T = TypeVar("T")
IDLE = 1.0
"""Seconds without anything to do after which memory is given back."""


class Busy(Exception):  # noqa: N818 - not a mistake
    """No more requests are taken at present."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        """Seconds after which it is worth another try."""


class Scheduler:
    """Accepts requests and steps them together in a thread of its own."""

    def __init__(self, models: Mapping[str, Model], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.crowds = {name: Crowd(model, limits) for name, model in models.items()}
        self.tickets: dict[str, Ticket] = {}
        """Requests that are accepted and not yet answered; only the event loop changes it."""
        self.stopping = False
        self._leaving: list[Crowd] = []
        """Of models that others have taken the place of: their requests are finished as they began."""
        self._arrivals: queue.SimpleQueue[Ticket | Model] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work, or begin again."""
        self.stopping = False
        self._ended.clear()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the model is at work, or ready to be."""
        return self._thread is not None and self._thread.is_alive() and not self.stopping

    def submit(self, model: Model, request: Request, user: str = "", watched: int = 0) -> Ticket:
        """Accept a request, to be called on the event loop; raises `Busy` where there is no room for it."""
        self._require_room(request)
        ticket = Ticket(model, request, user, time.monotonic() + self.limits.seconds, watched)
        self.tickets[ticket.id] = ticket
        ticket.ended.add_done_callback(lambda _: self.tickets.pop(ticket.id, None))
        self._arrivals.put(ticket)
        self._wake.set()
        return ticket

    def exchange(self, model: Model) -> None:
        """Let a model take the place of the one of its name, to be called on the event loop.

        Requests that were accepted before are finished with what they began with.
        """
        self._arrivals.put(model)
        self._wake.set()

    def _require_room(self, request: Request) -> None:
        if self.stopping:
            raise Busy("the server is stopping", 5)
        waiting = sum(ticket.request.num for ticket in self.tickets.values())
        if len(self.tickets) >= self.limits.queue or (
            self.tickets and waiting + request.num > self.limits.waiting
        ):
            raise Busy("too many requests are waiting", self.retry_after())

    def retry_after(self) -> int:
        """Seconds in which about half of what waits should be done, as far as one can tell."""
        return min(60, max(1, round(sum(crowd.seconds_left() for crowd in self.crowds.values()) / 2)))

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request; its rows leave before the next step."""
        ticket.cancelled = True
        self._wake.set()

    def run(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Have something done by the model's thread between two steps."""
        future: Future[T] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:
                    future.set_exception(error)

        self._jobs.put(job)
        self._wake.set()
        return future

    def finish_within(self, seconds: float) -> None:
        """Take no more requests; who is not done by then is told so. To be called on the event loop."""
        self.stopping = True
        for ticket in self.tickets.values():
            ticket.deadline = min(ticket.deadline, time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds, self._wake.set)

    def stop(self) -> None:
        """End the thread; whoever still waits is told so."""
        self.stopping = True
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        keep()
        while not self._ended.is_set():
            self._wake.clear()
            self._take_in()
            moved = [self._step(crowd) for crowd in (*self.crowds.values(), *self._leaving)]
            self._leaving = [crowd for crowd in self._leaving if crowd.busy]
            if not any(moved) and not self._wake.wait(IDLE):
                give_back()
                self._wake.wait()
        self._take_in()
        for crowd in (*self.crowds.values(), *self._leaving):
            crowd.fail("the server is stopping")

    def _take_in(self) -> None:
        """Requests and jobs that have come since the last step."""
        while not self._arrivals.empty():
            arrived = self._arrivals.get()
            if isinstance(arrived, Ticket):
                self.crowds[arrived.model.name].add(arrived)
            else:
                self._leaving.append(self.crowds[arrived.name])
                self.crowds[arrived.name] = self.crowds[arrived.name].succeeded(arrived)
        while not self._jobs.empty():
            self._jobs.get()()

    def _step(self, crowd: Crowd) -> bool:
        """One step of one model; whether there was anything to do."""
        try:
            return crowd.step()
        except Exception as error:  # one request must not take the server with it
            crowd.fail(reason_of(error))
            return True
