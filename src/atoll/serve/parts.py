"""`/v1/parts`: what `atoll add` and `atoll drop` did to a run, taken up while it is served."""

import asyncio
import time

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from atoll.serve import models, schema
from atoll.serve.api import PROBLEMS, Here
from atoll.serve.policies import EVERYBODY
from atoll.serve.service import Refused

router = APIRouter()


@router.post("/v1/parts", responses=PROBLEMS)
async def parts(http: HttpRequest, service: Here, model: str | None = None) -> schema.PartsAnswer:
    """Look again which parts the run has: new ones are loaded beside what is in memory, others let go.

    Where they lie nobody can say here, so that who asks can have nothing loaded but what the run was given.
    """
    if getattr(http.state, "user", EVERYBODY) != EVERYBODY:
        raise Refused(403, "parts are changed by whoever has the server's own token")
    async with service.changing:
        since = time.perf_counter()
        new = await asyncio.to_thread(models.reopened, service.model(model))
        service.exchange(new)
    seconds = round(time.perf_counter() - since, 4)
    return schema.PartsAnswer(model=new.name, parts=sorted(new.cards), seconds=seconds)
