"""Idempotency: a request that is sent again under the same key has the same answer, and is worked on once."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Response

MOST = 1024
"""Keys that are remembered at most."""


@dataclass
class Answer:
    """The answer to one key: under way, or given."""

    body: bytes
    """A digest of the request that it answers."""
    response: "asyncio.Future[Response]"
    size: int = 0


class Mismatch(Exception):  # noqa: N818 - it is the client's
    """The key was used for another request."""


class Again:
    """Answers by key, within so many bytes; failures are not kept, so that they can be tried again."""

    def __init__(self, most: int) -> None:
        """`most` bytes of answers are kept."""
        self.most = most
        self.size = 0
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    async def once(self, key: str, body: bytes, make: Callable[[], Awaitable[Response]]) -> Response:
        """What was answered under this key, or is about to be; else what `make` makes."""
        digest = hashlib.sha256(body).digest()
        known = self._answers.get(key)
        if known is not None and known.body != digest:
            raise Mismatch
        if known is not None:
            return known.response.result() if known.response.done() else await asyncio.shield(known.response)
        answer = self._answers[key] = Answer(digest, asyncio.get_running_loop().create_future())
        try:
            response = await make()
        except BaseException as error:
            self._forget(key)
            answer.response.set_exception(error if isinstance(error, Exception) else ConnectionAbortedError())
            answer.response.exception()  # that nobody else waits for it is no mistake
            raise
        answer.response.set_result(response)
        self._keep(key, answer, response)
        return response

    def _keep(self, key: str, answer: Answer, response: Response) -> None:
        answer.size = len(response.body)
        self.size += answer.size
        self._answers.move_to_end(key)
        while self.size > self.most or len(self._answers) > MOST:
            oldest = next(name for name, each in self._answers.items() if each.response.done())
            self._forget(oldest)

    def _forget(self, key: str) -> None:
        self.size -= self._answers.pop(key).size
