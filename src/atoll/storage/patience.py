"""Requests that are made again, with growing waits, until patience runs out; every fault is an event."""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from atoll.errors import Interrupted
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import Event

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds before the second try and between later ones; each wait is twice the last, give or take a half."""
Answer = TypeVar("Answer")


class Fault(Exception):  # noqa: N818 - never leaves this room
    """A request failed, in a few words of our own, and may succeed when it is made again."""


class Patience:
    """How long a store may fail, and what is done meanwhile."""

    def __init__(self, address: str, seconds: float, event: Event, clock: Clock = CLOCK) -> None:
        self.address, self.seconds, self.event, self.clock = address, seconds, event, clock

    def __call__(self, operation: str, name: str, request: Callable[[], Answer]) -> Answer:
        """The answer to a request, made as often as necessary; `Interrupted` when that is too often."""
        began, wait, tries = self.clock.now(), FIRST_WAIT, 0
        while True:
            tries += 1
            try:
                return request()
            except Fault as fault:
                problem = str(fault)
            self.event("store_fault", operation=operation, name=name, problem=problem, tries=tries)
            if tries == 1:
                logger.warning("%s: %s (%s); trying again", self.address, problem, operation)
            if self.clock.now() + wait - began > self.seconds:
                raise Interrupted(
                    f"{self.address} does not answer ({problem}); run the same command again when it does"
                )
            self.clock.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, LONGEST_WAIT)
