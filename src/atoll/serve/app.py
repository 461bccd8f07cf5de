"""The application: routes, the door, the scheduler's life; pages are mounted beside the API."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from fastapi import APIRouter, FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

import atoll
from atoll.errors import AtollError
from atoll.serve import api, health, images, metrics, parts, tracing
from atoll.serve.access import Door, problem
from atoll.serve.again import Again
from atoll.serve.batching import Scheduler
from atoll.serve.kept import Kept
from atoll.serve.limits import Limits
from atoll.serve.models import Model
from atoll.serve.policies import Policies
from atoll.serve.service import Refused, Service

ROUTERS = (health.router, metrics.router, api.router, images.router, tracing.router, parts.router)


def create_app(
    models: Mapping[str, Model],
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    pages: Sequence[APIRouter] = (),
    show_data: bool = False,
    policies: Policies | None = None,
) -> FastAPI:
    """An application that serves these models; `pages` are routers for people, at `/`.

    With `show_data` whoever asks who made a sample also sees the training samples that are nearest to it.
    """
    limits = limits or Limits()
    scheduler = Scheduler(models, limits)
    registry = metrics.registered(scheduler)
    policies = policies or Policies()
    kept, again = Kept(limits.kept), Again(limits.kept)
    service = Service(
        dict(models),
        scheduler,
        limits,
        token,
        kept,
        again,
        registry,
        show_data=show_data,
        policies=policies,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.scheduler.start()
        yield
        service.scheduler.stop()

    app = FastAPI(
        title="Atoll",
        version=atoll.__version__,
        description=__doc__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    for router in (*ROUTERS, *pages):
        app.include_router(router)
    answered = metrics.Requests(registry)
    app.add_middleware(
        Door, token=token, body=limits.body, hosts=hosts, answered=answered, users=policies.tokens
    )
    app.add_exception_handler(AtollError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _other)
    return app


async def _refused(http: HttpRequest, error: Exception) -> JSONResponse:
    status, headers = (error.status, error.headers) if isinstance(error, Refused) else (422, {})
    return JSONResponse(problem(status, str(error)), status, headers)


async def _invalid(http: HttpRequest, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return JSONResponse(problem(422, f"{where}: {first['msg']}" if where else first["msg"]), 422)


async def _other(http: HttpRequest, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(problem(error.status_code, error.detail), error.status_code, error.headers)
