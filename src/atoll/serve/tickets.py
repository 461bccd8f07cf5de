"""A request under way: what is heard of it, by whoever waits for it on the event loop."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import AtollError
from atoll.sampling.request import Request
from atoll.serve.models import Model

logger = logging.getLogger(__name__)


class Progress(NamedTuple):
    """How far a request is."""

    step: int
    """Steps that its slowest sample under way has done."""
    steps: int
    done: int
    """Samples that are finished."""
    preview: Tensor | None = None
    """What its samples will be as far as one can tell, (num, channels, *grid) on the CPU; zero at first."""
    shares: NDArray[np.float32] | None = None
    """With a preview, who has made how much of each sample by now, (num, experts)."""


@dataclass(frozen=True)
class Provenance:
    """The weights of the experts along the way of every sample."""

    times: tuple[float, ...]
    weights: NDArray[np.float32]
    """(asked, num, experts)"""
    disagreement: NDArray[np.float32]
    """(asked, num)"""
    moved: NDArray[np.float32]
    """(num, experts): how much of each sample's way each expert went; signed."""


@dataclass(frozen=True)
class Made:
    """A request that is done."""

    x_0: Tensor
    """(num, channels, *grid) on the CPU, as networks see it."""
    shares: NDArray[np.float32]
    """(num, experts)"""
    strategy: str
    certainty: float | None
    seconds: float
    """From acceptance to the last sample."""
    provenance: Provenance | None = None


class Failed(NamedTuple):
    """A request that will not be done, and why."""

    reason: str
    cancelled: bool = False


Event = Progress | Made | Failed


def reason_of(error: Exception) -> str:
    """What a client is told of an error: mistakes in words; of faults, only that there was one."""
    if isinstance(error, AtollError):
        return str(error)
    logger.error("the model failed", exc_info=error)
    return "the model failed; see the server's log"


class Dropped(Exception):  # noqa: N818 - not everybody who goes away is mistaken
    """The request was not finished: cancelled, too slow, or the server stops."""


@dataclass(eq=False)
class Ticket:
    """One accepted request."""

    model: Model
    request: Request
    user: str
    deadline: float
    """By `time.monotonic`."""
    watched: int = 0
    """Every so many steps its samples are shown as they form; 0 is never."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    accepted: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _heard: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    ended: "asyncio.Future[Made | Failed]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Resolved with the last event."""

    def tell(self, event: Event) -> None:
        """Hand an event to the event loop, from whatever thread."""
        try:
            self._loop.call_soon_threadsafe(self._hear, event)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Progress) and not self.ended.done():
            self.ended.set_result(event)
        if self.watched or not isinstance(event, Progress):
            self._heard.put_nowait(event)

    async def events(self) -> AsyncIterator[Event]:
        """What happens to the request, up to its end; of several steps at once only the last is told."""
        while True:
            event = await self._heard.get()
            while isinstance(event, Progress) and not self._heard.empty():
                event = _later(event, self._heard.get_nowait())
            yield event
            if not isinstance(event, Progress):
                return

    async def result(self) -> Made:
        """The samples, when they are done."""
        event = await asyncio.shield(self.ended)
        if isinstance(event, Made):
            return event
        raise Dropped(event.reason)


def _later(before: Progress, event: Event) -> Event:
    """The later of two events; a preview that nobody has seen is not lost."""
    if isinstance(event, Progress) and event.preview is None:
        return event._replace(preview=before.preview, shares=before.shares)
    return event
