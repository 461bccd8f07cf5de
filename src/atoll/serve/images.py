"""`/v1/images/generations` and `/v1/models` as OpenAI has them, so that existing clients work."""

import asyncio
import secrets
import time
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from atoll.serve import answers, schema
from atoll.serve.api import PROBLEMS, Here, Key, pictures, submitted
from atoll.serve.models import Model
from atoll.serve.service import Refused, Service
from atoll.serve.tickets import Made, Ticket

router = APIRouter()
STARTED = int(time.time())


@router.get("/v1/models", responses=PROBLEMS)
async def models(service: Here) -> schema.ModelList:
    """What is served."""
    return schema.ModelList(data=[_card(model) for model in service.models.values()])


@router.get("/v1/models/{name:path}", responses=PROBLEMS)
async def model(name: str, service: Here) -> schema.ModelCard:
    """One model."""
    return _card(service.model(name))


def _card(model: Model) -> schema.ModelCard:
    ensemble, defaults = model.sampler.ensemble, model.sampler.defaults
    return schema.ModelCard(
        id=model.name,
        created=STARTED,
        kind=model.kind,
        shape=list(model.shape),
        experts=len(ensemble.experts) - len(ensemble.absent),
        condition=ensemble.kind,
        classes=list(model.class_names),
        steps=defaults.steps,
        strategy=defaults.strategy,
    )


@router.post("/v1/images/generations", response_model=schema.ImagesAnswer, responses=PROBLEMS)
async def generations(
    asked: schema.ImagesRequest, http: HttpRequest, service: Here, idempotency_key: Key = None
) -> Any:
    """Pictures of a prompt: a text, or the name of a class."""
    return await service.once(http, asked, idempotency_key, lambda: _generated(asked, http, service))


async def _generated(asked: schema.ImagesRequest, http: HttpRequest, service: Service) -> Response:
    model = service.model(asked.model)
    if model.contents is None:
        raise Refused(422, "this model makes no pictures")
    seed = secrets.randbelow(2**53) if asked.seed is None else asked.seed
    request = await service.request(model, http, num=asked.n or 1, seed=seed, **_wish(model, asked.prompt))
    ticket = submitted(service, http, asked.user or "", model, request)
    made = await service.made(ticket, http)
    shown = await pictures(ticket, made, service)
    files = await asyncio.to_thread(_files, ticket, made, shown, _size(asked.size))
    data = [_data(content, asked, http, service) for content in files]
    answer = schema.ImagesAnswer(created=int(time.time()), data=data)
    return Response(answer.model_dump_json(), media_type="application/json")


def _wish(model: Model, prompt: str) -> dict[str, Any]:
    """A prompt as this model takes it; one that is told nothing takes any, and does what it can."""
    kind = model.sampler.ensemble.kind
    if kind == "none" or not prompt:
        return {}
    return {"prompt": prompt} if kind == "text" else {"label": prompt}


def _size(size: str | None) -> tuple[int, int] | None:
    if size is None or size == "auto":
        return None
    width, height = map(int, size.split("x"))
    if width * height > 2048 * 2048:
        raise Refused(422, f"size is at most 2048x2048, not {size}")
    return width, height


def _files(ticket: Ticket, made: Made, shown: Any, size: tuple[int, int] | None) -> list[bytes]:
    return [answers.png(one, answers.about(ticket, made, index), size) for index, one in enumerate(shown)]


def _data(
    content: bytes, asked: schema.ImagesRequest, http: HttpRequest, service: Service
) -> schema.ImageData:
    if asked.response_format != "url":
        return schema.ImageData(b64_json=answers.b64(content))
    name = service.kept.put(content)
    return schema.ImageData(url=f"{str(http.base_url).rstrip('/')}/v1/images/files/{name}")


@router.get(
    "/v1/images/files/{name}",
    responses={**PROBLEMS, 200: {"content": {"image/png": {}}}},
    response_class=Response,
)
async def file(name: str, service: Here) -> Response:
    """A picture that was made a while ago, from memory."""
    content = service.kept.get(name)
    if content is None:
        raise Refused(404, "there is no such picture any more; ask for response_format 'b64_json'")
    return Response(content, media_type="image/png")
