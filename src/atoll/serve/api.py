"""`/v1/samples`: everything a sampler can do, as pictures, arrays, sound, JSON or a stream of events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Response
from fastapi import Request as HttpRequest
from sse_starlette import EventSourceResponse

from atoll.serve import answers, schema
from atoll.serve.batching import Busy
from atoll.serve.service import Refused, Service, service_of
from atoll.serve.tickets import Failed, Made, Progress, Ticket

Here = Annotated[Service, Depends(service_of)]
Key = Annotated[str | None, Header(max_length=256, description="Of the client's making; see idempotency.")]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Refusal, "description": reason}
    for status, reason in {
        400: "The request is no request.",
        401: "The token is missing or wrong.",
        403: "A page of another server asked.",
        404: "There is no such model or request.",
        409: "The idempotency key was used for another request.",
        413: "The request is too large.",
        421: "The server is not asked by that name.",
        422: "The request asks for something that cannot be had.",
        429: "Too many requests are waiting; come back after Retry-After seconds.",
        503: "Cancelled, not done in time, or the server is stopping.",
    }.items()
}
MEDIA = {"png": "image/png", "npz": "application/octet-stream", "wav": "audio/wav"}
SMALL = 16_384
"""Numbers of samples that are a picture in less time than it takes to wake a thread."""
SETTINGS = {"model", "format", "rate", "stream", "preview_every", "user", "num"}
"""Fields of a request that a sampler does not take, or not as they are."""

router = APIRouter()


@router.post(
    "/v1/samples",
    response_model=schema.SamplesAnswer,
    responses={
        **PROBLEMS,
        200: {
            "description": "Samples, in the format that was asked for.",
            "content": {media: {} for media in (*MEDIA.values(), "text/event-stream")},
        },
    },
)
async def samples(
    asked: schema.SamplesRequest, http: HttpRequest, service: Here, idempotency_key: Key = None
) -> Any:
    """Draw samples; sent again under the same key while or after it is answered, nothing is drawn twice."""
    if asked.stream:
        if idempotency_key is not None:
            raise Refused(422, "a stream is not kept to be told again; leave out 'stream' or Idempotency-Key")
        ticket = await _accepted(asked, http, service)
        return EventSourceResponse(_stream(ticket, service), ping=15)

    async def make() -> Response:
        ticket = await _accepted(asked, http, service)
        return await _answer(asked, ticket, await service.made(ticket, http), service)

    return await service.once(http, asked, idempotency_key, make)


@router.delete("/v1/samples/{id}", response_model=schema.Cancelled, responses=PROBLEMS)
async def cancel(id: str, service: Here) -> schema.Cancelled:
    """Drop a request that is under way; its id is in the first event of its stream."""
    ticket = service.scheduler.tickets.get(id)
    if ticket is None:
        raise Refused(404, "there is no such request under way")
    service.scheduler.cancel(ticket)
    return schema.Cancelled(id=id, cancelled=True)


async def _accepted(asked: schema.SamplesRequest, http: HttpRequest, service: Service) -> Ticket:
    model = service.model(asked.model)
    wanted = asked.model_dump(exclude=SETTINGS, exclude_none=True)
    num = asked.num if asked.seeds is None else asked.num or len(asked.seeds)
    request = await service.request(model, http, num=num or 1, **wanted)
    if asked.format == "wav":
        answers.check_wav(model, request)
    if asked.format == "png" and model.contents is None:
        raise Refused(422, "nobody knows what these samples look like; ask for format 'npz' or 'json'")
    return submitted(service, http, asked.user, model, request, asked.preview_every if asked.stream else 0)


def submitted(
    service: Service, http: HttpRequest, user: str, model: Any, request: Any, watched: int = 0
) -> Ticket:
    """A request that is accepted, or refused because there is no room."""
    try:
        return service.scheduler.submit(model, request, service.user(http, user), watched)
    except Busy as busy:
        status = 503 if service.scheduler.stopping else 429
        raise Refused(status, str(busy), {"Retry-After": str(busy.retry_after)}) from None


async def _answer(asked: schema.SamplesRequest, ticket: Ticket, made: Made, service: Service) -> Response:
    """Samples in the format that was asked for."""
    content: bytes
    if asked.format == "json":
        return Response(await _json(ticket, made, service), media_type="application/json")
    if asked.format == "npz":
        content = await asyncio.to_thread(answers.npz, ticket.model, made)
    elif asked.format == "wav":
        content = answers.wav(ticket.model, made, asked.rate)
    elif made.x_0.numel() <= SMALL and not borrows(ticket):
        content = answers.sheet(ticket, made, answers.pixels(ticket.model, made.x_0))
    else:
        shown = await pictures(ticket, made, service)
        content = await asyncio.to_thread(answers.sheet, ticket, made, shown)
    return Response(content, media_type=MEDIA[asked.format])


async def _json(ticket: Ticket, made: Made, service: Service) -> str:
    shown = None if ticket.model.contents is None else await pictures(ticket, made, service)
    return await asyncio.to_thread(lambda: answers.as_json(ticket, made, shown).model_dump_json())


async def pictures(ticket: Ticket, made: Made, service: Service) -> Any:
    """A picture of each sample; an autoencoder works in the model's thread."""
    model = ticket.model
    if borrows(ticket):
        return await service.in_model_thread(lambda: answers.pixels(model, made.x_0))
    return await asyncio.to_thread(answers.pixels, model, made.x_0)


def borrows(ticket: Ticket) -> bool:
    """Whether an autoencoder makes the pictures."""
    return ticket.model.contents is not None and ticket.model.contents.autoencoder is not None


async def _stream(ticket: Ticket, service: Service) -> AsyncIterator[dict[str, str]]:
    """Events of one request; who stops listening has it dropped."""
    try:
        yield _event("accepted", {"id": ticket.id, "num": ticket.request.num})
        async for event in ticket.events():
            if isinstance(event, Progress):
                yield _event("progress", await asyncio.to_thread(answers.progress, ticket, event))
            elif isinstance(event, Failed):
                yield _event("failed", {"reason": event.reason})
            else:
                yield {"event": "done", "data": await _json(ticket, event, service)}
    finally:
        service.scheduler.cancel(ticket)


def _event(name: str, facts: dict[str, Any]) -> dict[str, str]:
    return {"event": name, "data": json.dumps(facts)}
