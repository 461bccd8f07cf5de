"""Why a request was not done, in one shape for every error."""

import json

from fastapi.responses import JSONResponse

from atoll.net.protocol import Message, Seconds, Sentence, Word


class Problem(Message):
    """Why a request was not done."""

    code: Word
    message: Sentence
    retry_after: Seconds | None = None
    now: Seconds | None = None
    """The coordinator's clock, where the asker's own may be wrong."""


class Problems(Message):
    """The shape of every error."""

    error: Problem


def refusal(
    status: int, code: str, message: str, retry: float | None = None, now: float | None = None
) -> JSONResponse:
    """An answer with a status, a code for programs and a sentence for people."""
    problem = Problem(code=code[:120], message=message[:500], retry_after=retry, now=now)
    headers = {} if retry is None else {"Retry-After": str(max(1, int(retry)))}
    return JSONResponse(json.loads(Problems(error=problem).model_dump_json()), status, headers)
