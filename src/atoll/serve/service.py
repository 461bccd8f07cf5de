"""What the routes of one server share: models, the scheduler, limits, and what is kept."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from fastapi import Response
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from atoll.errors import AtollError, ConfigError
from atoll.sampling.request import Request
from atoll.serve.again import Again, Mismatch
from atoll.serve.batching import Scheduler
from atoll.serve.kept import Kept
from atoll.serve.limits import Limits
from atoll.serve.models import Model
from atoll.serve.policies import EVERYBODY, Policies
from atoll.serve.tickets import Dropped, Made, Ticket

T = TypeVar("T")
DRAWS = 64
"""Experts that a sample may draw at each step, with the strategy `sample-N`."""
GONE = 499
"""The status that nobody sees, since the client has gone away; it is counted as nginx counts it."""


class Refused(AtollError):  # noqa: N818 - it may be the server's fault
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


class OneAtATime:
    """A door for one, that counts who waits before it."""

    def __init__(self) -> None:
        self.waiting = 0
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


@dataclass(frozen=True)
class Service:
    """One server's inside; routes find it as `request.app.state.service`."""

    models: dict[str, Model]
    scheduler: Scheduler
    limits: Limits
    token: str | None = None
    kept: Kept = field(default_factory=lambda: Kept(2**20))
    """Pictures that are asked for by address."""
    again: Again = field(default_factory=lambda: Again(2**20))
    """Answers that are asked for again by key."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    tracing: OneAtATime = field(default_factory=OneAtATime)
    """Samples whose makers are asked for are looked into one after the other."""
    changing: OneAtATime = field(default_factory=OneAtATime)
    """Parts come and go one after the other."""
    show_data: bool = False
    """Whether those who ask may see training samples, and not their ids alone."""
    policies: Policies = field(default_factory=Policies)
    """Who may have which parts asked."""

    def model(self, name: str | None) -> Model:
        """The model of this name; the first, where none is named."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(404, f"there is no model '{name}'; there are {', '.join(self.models)}")
        return self.models[name]

    def exchange(self, model: Model) -> None:
        """Let a model take the place of the one of its name, for whoever asks from now on."""
        self.models[model.name] = model
        self.scheduler.exchange(model)

    async def request(self, model: Model, http: HttpRequest | None = None, **wanted: Any) -> Request:
        """What is asked for, allowed, valid and within the limits; texts are encoded off the event loop."""
        wanted = self._allowed(model, http, wanted)
        self._require("num", wanted.get("num") or 1, self.limits.num)
        self._require("steps", wanted.get("steps") or 1, self.limits.steps)
        kind, _, number = (wanted.get("strategy") or "").partition("-")
        self._require("N of sample-N", int(number) if kind == "sample" else 1, DRAWS)
        try:
            if model.sampler.ensemble.kind == "text":
                request = await self.in_model_thread(lambda: model.sampler.request(**wanted))
            else:
                request = model.sampler.request(**wanted)
        except ConfigError as error:
            raise Refused(422, str(error)) from None
        self._require_memory(model, request)
        return request

    def require_all_parts(self, model: Model, http: HttpRequest) -> None:
        """Refuse who may not have all parts asked what only all of them can tell."""
        if "experts" in self._allowed(model, http, {}):
            raise Refused(403, "this is asked of all parts, and you may not ask some of them")

    def _allowed(self, model: Model, http: HttpRequest | None, wanted: dict[str, Any]) -> dict[str, Any]:
        """The same of those parts alone that this user may have asked; weights are renormalised over them."""
        if not model.cards:
            return wanted
        try:
            user = EVERYBODY if http is None else getattr(http.state, "user", EVERYBODY)
            numbers = self.policies.allowed(model.cards, user)
        except ConfigError as error:
            raise Refused(403, str(error)) from None
        if len(numbers) == len(model.cards):
            return wanted
        if model.distilled:
            raise Refused(403, "this student has parts in it that you may not ask; ask the ensemble")
        asked = wanted.get("experts")
        if asked is not None and not set(asked) <= set(numbers):
            raise Refused(403, f"you may ask parts {', '.join(map(str, numbers))}, and no others")
        return {**wanted, "experts": tuple(numbers) if asked is None else asked}

    def _require_memory(self, model: Model, request: Request) -> None:
        """The way of every sample is held until it is told."""
        settings, experts = request.settings, len(model.sampler.ensemble.experts)
        if settings.provenance and 8 * settings.num * settings.steps * (experts + 1) > self.limits.kept:
            raise Refused(422, "provenance of so many samples and steps is too long; ask for fewer")

    def _require(self, name: str, value: int, most: int) -> None:
        if value > most:
            raise Refused(422, f"{name} is at most {most} here, not {value}; ask for less")

    async def in_model_thread(self, function: Callable[[], T]) -> T:
        """What the model's thread makes of something between two steps."""
        return await asyncio.wrap_future(self.scheduler.run(function))

    def user(self, http: HttpRequest, name: str = "") -> str:
        """Who shares the server: an address; a name tells several behind it apart if they have the token."""
        address = http.client.host if http.client else ""
        own = getattr(http.state, "user", "")
        address = f"{address}/{own}" if own else address
        return f"{address}/{name}" if self.token or own else address

    async def once(
        self, http: HttpRequest, asked: BaseModel, key: str | None, make: Callable[[], Awaitable[Response]]
    ) -> Response:
        """An answer that is made once for each key of one user, however often it is asked for."""
        if key is None:
            return await make()
        try:
            place = f"{self.user(http)} {http.url.path} {key}"
            return await self.again.once(place, asked.model_dump_json().encode(), make)
        except Mismatch:
            raise Refused(409, "this idempotency key was used for another request; take a new one") from None
        except (ConnectionAbortedError, Refused) as error:
            if isinstance(error, Refused) and error.status != GONE:
                raise
            raise Refused(503, "whoever asked first has gone away; ask again", {"Retry-After": "1"}) from None

    async def made(self, ticket: Ticket, http: HttpRequest) -> Made:
        """The samples of a request; if whoever wants them goes away, they are dropped."""
        gone = asyncio.ensure_future(_disconnected(http))
        result = asyncio.ensure_future(ticket.result())
        try:
            await asyncio.wait({gone, result}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise Refused(GONE, "the client has gone away")
            return result.result()
        except Dropped as error:
            raise Refused(503, str(error), {"Retry-After": str(self.scheduler.retry_after())}) from None
        finally:
            for task in (gone, result):
                task.cancel()
            if not ticket.ended.done():
                self.scheduler.cancel(ticket)


def service_of(http: HttpRequest) -> Service:
    """The service behind a request: what routes depend on."""
    service: Service = http.app.state.service
    return service


async def _disconnected(http: HttpRequest) -> None:
    """Wait until the client has gone away; its body has been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
