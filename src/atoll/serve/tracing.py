"""`/v1/makers`: which parts would make a sample that is given, whoever made it."""

import asyncio
import base64
import binascii
from typing import Any

import torch
from fastapi import APIRouter
from fastapi import Request as HttpRequest

from atoll.evaluate import calibration, given, held_out, neighbours
from atoll.runs import Run
from atoll.sampling import gallery, makers
from atoll.sampling.makers import Makers
from atoll.serve import answers, schema
from atoll.serve.api import PROBLEMS, Here
from atoll.serve.models import Model
from atoll.serve.service import GONE, Refused, Service

router = APIRouter()
LARGEST = 2**24
"""Pixels that a picture may have before it is brought to the run's size."""
WAITING = 16
"""Questions that may wait for the one that is looked into."""


@router.post("/v1/makers", responses=PROBLEMS)
async def traced(asked: schema.MakersRequest, http: HttpRequest, service: Here) -> schema.MakersAnswer:
    """How likely a sample is under each part, whom the router would ask, and its nearest training samples."""
    model = service.model(asked.model)
    if model.run is None or len(model.sampler.ensemble.experts) == 1:
        raise Refused(422, "one network makes all samples here; ask about a model with several experts")
    service.require_all_parts(model, http)
    x_0 = await _sample(asked, model, model.run, service)
    condition = await _condition(asked, model, service)
    if service.tracing.waiting >= WAITING:
        raise Refused(429, "too many samples are looked into", {"Retry-After": "5"})
    async with service.tracing:
        made = await _looked(model, model.run, x_0, condition, http, service)
        near = await asyncio.to_thread(_nearest, model.run, x_0, service.show_data)
    return schema.MakersAnswer(model=model.name, **near, **made.facts(0))


async def _sample(asked: schema.MakersRequest, model: Model, run: Run, service: Service) -> torch.Tensor:
    """What was given, as networks see it."""
    if (asked.png is None) == (asked.values is None):
        raise Refused(422, "give a sample: either 'png' or 'values'")
    if asked.png is None:
        return await asyncio.to_thread(given.values, run, asked.values, "values")
    try:
        content = base64.b64decode(asked.png, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(422, "png is no base64") from None
    if model.contents is not None and model.contents.autoencoder is not None:
        return await service.in_model_thread(lambda: given.picture(run, content, "png", LARGEST))
    return await asyncio.to_thread(given.picture, run, content, "png", LARGEST)


async def _condition(asked: schema.MakersRequest, model: Model, service: Service) -> Any:
    """The condition under which experts are asked; none where none was told."""
    wish = {name: value for name in ("label", "prompt") if (value := getattr(asked, name)) is not None}
    if not wish:
        return None
    request = await service.request(model, num=1, **wish)
    return request.told([0], model.sampler.ensemble)


async def _looked(
    model: Model, run: Run, x_0: torch.Tensor, condition: Any, http: HttpRequest, service: Service
) -> Makers:
    """One question of the experts after the other, each between two steps of those who want samples."""
    config = run.config.credit
    look = makers.looking(
        model.sampler.ensemble,
        x_0,
        levels=config.levels,
        batch=config.batch,
        seed=held_out.seed_of(run),
        condition=condition,
        calibration=await asyncio.to_thread(calibration.kept, run, condition is not None),
    )
    made: Makers | None = None
    while made is None:
        if await http.is_disconnected():
            raise Refused(GONE, "the client has gone away")
        _, made = await service.in_model_thread(lambda: makers.advanced(look))
    return made


def _nearest(run: Run, x_0: torch.Tensor, show: bool) -> dict[str, Any]:
    """The nearest of each part: ids, and pictures of them where whoever asks may see the data."""
    near = neighbours.lying(run, x_0, run.config.credit.nearest)
    if near is None:
        return {"nearest": None}
    named, shares = near[0]
    shown = neighbours.by_id(run, [one.id for part in named for one in part]) if show else {}
    pictures = [[_one(run, one, shown.get(one.id)) for one in part] for part in named]
    return {"nearest": pictures, "near": shares}


def _one(run: Run, one: neighbours.Neighbour, x_0: torch.Tensor | None) -> schema.Nearest:
    picture = None
    if x_0 is not None:
        shown = gallery.to_preview(x_0, run.partition.contents)[0]
        picture = answers.b64(answers.png(shown, {}))
    return schema.Nearest(**one.facts(), png=picture)
