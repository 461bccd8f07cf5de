"""The coordinator over HTTP: parsed and signed at the door, done in a thread, answered in JSON.

Handlers are three lines: who asks, what is asked, the answer. Whatever goes wrong has one shape, and no
answer tells what a library or a database said.
"""

import re
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import atoll
from atoll.errors import AtollError, Interrupted, StorageError
from atoll.net import callers, keys, protocol, relocating, signing
from atoll.net.artifacts import PIECE, ArtifactError
from atoll.net.callers import Caller
from atoll.net.coordinator import Coordinator
from atoll.net.database import Away
from atoll.net.leasing import LeaseError
from atoll.net.pacing import TooMany
from atoll.net.problems import Problems, refusal
from atoll.net.protocol import BODY, Message, ProtocolError, parse
from atoll.net.results import NotYours
from atoll.net.signing import Unsigned

RETRY = 5
"""Seconds after which one may ask again where the coordinator itself is not well."""
RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
EMPTY = re.compile(r"bytes \*/0")
IDENTITY = re.compile(r"[0-9a-f]{64}")
IDENTIFIER = r"^[0-9a-zA-Z_-]{1,64}$"
PLACE = "#/components/schemas/{model}"
PARTS: dict[str, Any] = {}
"""Of what messages are made, for the API's description."""
router = APIRouter()


class TooLong(AtollError):  # noqa: N818 - a state
    """A body is longer than it may be."""


async def body_of(http: Request, most: int = BODY) -> bytes:
    """All of a body, or TooLong as soon as that is known."""
    length = http.headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length) > most:
        raise TooLong(f"a body has at most {most} bytes")
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > most:
            raise TooLong(f"a body has at most {most} bytes")
        parts.append(part)
    return b"".join(parts)


def here_of(http: Request) -> Coordinator:
    """The coordinator that an application serves."""
    here: Coordinator = http.app.state.here
    return here


def _request(http: Request) -> signing.Request:
    return signing.Request(http.method, str(http.url), dict(http.headers.items()))


def _writable(here: Coordinator) -> None:
    """Nothing is changed here of a run that has moved."""
    if here.moved:
        raise LeaseError("moved", "this run is served elsewhere now; GET /v1/relocation says where")


def _caller(here: Coordinator, http: Request, body: bytes) -> Caller:
    """Who asks."""

    def known(key_id: str) -> callers.Known:
        device = here.device(key_id) if IDENTITY.fullmatch(key_id) else None
        if device is None:
            raise Unsigned("stranger", "this device is not known here, or its delegation has expired; join")
        return device

    signed = signing.verify(_request(http), body, lambda key_id: known(key_id).key, here.clock.date())
    here.pace.check(signed.key_id, here.clock.now())
    return Caller(known(signed.key_id).account, signed.key_id, signed)


def _described(kind: type[Message]) -> dict[str, Any]:
    """How the API's description shows a body that is parsed by hand."""
    schema = kind.model_json_schema(ref_template=PLACE)
    PARTS.update(schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problems, "description": reason}
    for status, reason in {
        400: "This is no message.",
        401: "The request is not signed, by nobody known, or not now.",
        404: "There is no such thing, or it is another's.",
        405: "There is nothing of the kind.",
        409: "It is against the rules of leases.",
        413: "It is too long.",
        422: "It is not what it says.",
        429: "Too much of it; come back later.",
        503: "The database or the store is away; come back later.",
        507: "The disk is full; come back later.",
    }.items()
}


def _posted(
    kind: type[Any], act: Callable[[Coordinator, Caller, Any, str], Message]
) -> Callable[[Request], Any]:
    """A handler: read, verify, parse, act, answer; all but reading in a thread."""

    async def handler(http: Request) -> Response:
        body = await body_of(http)
        here, name = here_of(http), http.path_params.get("name", "")

        def work() -> bytes:
            _writable(here)
            caller = _caller(here, http, body)
            return act(here, caller, parse(kind, body), name).model_dump_json().encode()

        return Response(await run_in_threadpool(work), media_type="application/json")

    return handler


POSTS: tuple[tuple[str, type[Message], Any, Any], ...] = (
    (
        "/v1/leases",
        protocol.LeaseRequest,
        lambda here, caller, message, name: here.lease(caller, message),
        protocol.LeaseOffer | protocol.Refusal,
    ),
    (
        "/v1/leases/{name}/heartbeat",
        protocol.Heartbeat,
        lambda here, caller, message, name: here.heartbeat(caller, name, message),
        protocol.HeartbeatAnswer,
    ),
    (
        "/v1/leases/{name}/progress",
        protocol.Progress,
        lambda here, caller, message, name: here.progress(caller, name, message),
        protocol.Acknowledged,
    ),
    (
        "/v1/leases/{name}/release",
        protocol.Release,
        lambda here, caller, message, name: here.release(caller, name, message),
        protocol.Acknowledged,
    ),
    (
        "/v1/leases/{name}/submit",
        protocol.Submission,
        lambda here, caller, message, name: here.submit(caller, name, message),
        protocol.Receipt,
    ),
    (
        "/v1/submissions/{name}/states",
        protocol.Shown,
        lambda here, caller, message, name: here.show(caller, name, message),
        protocol.Receipt,
    ),
    (
        "/v1/reconcile",
        protocol.Reconcile,
        lambda here, caller, message, name: here.reconcile(caller, message),
        protocol.Reconciled,
    ),
)
for _path, _kind, _act, _answer in POSTS:
    router.add_api_route(
        _path,
        _posted(_kind, _act),
        methods=["POST"],
        response_model=_answer,
        responses=PROBLEMS,
        openapi_extra={
            **_described(_kind),
            "parameters": [
                {
                    "name": "name",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "pattern": IDENTIFIER},
                }
            ]
            if "{name}" in _path
            else [],
        },
        name=_path,
    )


@router.post(
    "/v1/accounts",
    response_model=protocol.Joined,
    responses=PROBLEMS,
    openapi_extra=_described(protocol.Join),
)
async def accounts(http: Request) -> Response:
    """A device introduces itself; it is not known yet, so its own message says by which key it is signed."""
    body, here = await body_of(http), here_of(http)

    def work() -> bytes:
        _writable(here)
        message = parse(protocol.Join, body)
        device = keys.public_key(message.delegation.device)
        name = keys.identity(message.delegation.device)
        signed = signing.verify(
            _request(http), body, lambda key_id: device if key_id == name else None, here.clock.date()
        )
        return here.join(message, signed).model_dump_json().encode()

    return Response(await run_in_threadpool(work), media_type="application/json")


@router.get("/v1/manifest", response_model=protocol.SignedManifest, responses=PROBLEMS)
def manifest(http: Request) -> Any:
    """What the run is, signed."""
    signed: protocol.SignedManifest | None = getattr(http.app.state, "manifest", None)
    if signed is None:
        raise HTTPException(404, "nothing is published here yet")
    return signed


@router.get("/v1/relocation", response_model=relocating.SignedRelocation, responses=PROBLEMS)
def relocation(http: Request) -> Any:
    """Where the run is served now, signed, if it is elsewhere."""
    notice = relocating.notice(here_of(http).database)
    if notice is None:
        raise HTTPException(404, "the run is served here")
    return notice


@router.get("/v1/submissions/{name}", response_model=protocol.Receipt, responses=PROBLEMS)
def submission(http: Request, name: str) -> Any:
    """What has become of a result."""
    return here_of(http).receipt(name)


@router.head("/v1/files/{sha256}", responses=PROBLEMS, response_class=FileResponse, include_in_schema=False)
@router.get("/v1/files/{sha256}", responses=PROBLEMS, response_class=FileResponse)
def file(http: Request, sha256: str) -> Response:
    """A file, or a range of it; whoever signs the question hears how much of it is here of its own."""
    here = here_of(http)
    if here.artifacts.size(sha256) is None:
        problem = refusal(404, "missing", "there is no such file here")
        if "signature" in http.headers:
            received = here.artifacts.received(sha256, _caller(here, http, b"").account)
            problem.headers["Upload-Offset"] = str(received)
        return problem
    headers = {"ETag": f'"{sha256}"', "Cache-Control": "public, max-age=31536000, immutable"}
    return FileResponse(here.artifacts.path(sha256), media_type="application/octet-stream", headers=headers)


@router.put(
    "/v1/files/{sha256}",
    responses={**PROBLEMS, 200: {"description": "It is here."}, 202: {"description": "Go on."}},
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        }
    },
)
async def send(http: Request, sha256: str) -> Response:
    """A piece of a file: Content-Range says which; the answer says how much is here."""
    body, here = await body_of(http, PIECE), here_of(http)

    def work() -> tuple[bool, int, int]:
        _writable(here)
        caller = _caller(here, http, body)
        given = http.headers.get("content-range", "")
        if EMPTY.fullmatch(given) and not body:
            start, total = 0, 0
        else:
            match = RANGE.fullmatch(given)
            if match is None or int(match[2]) - int(match[1]) + 1 != len(body):
                raise ProtocolError("Content-Range says which bytes of how many these are")
            start, total = int(match[1]), int(match[3])
        here.remember(caller)
        whole = here.artifacts.receive(sha256, caller.account, start, total, body)
        return whole, total if whole else here.artifacts.received(sha256, caller.account), total

    whole, received, total = await run_in_threadpool(work)
    return JSONResponse({"received": received, "size": total, "whole": whole}, 200 if whole else 202)


@router.get("/healthz", responses=PROBLEMS)
def healthz() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


def create_app(
    here: Coordinator, manifest: protocol.SignedManifest | None = None, *routers: APIRouter
) -> FastAPI:
    """An application over a coordinator; `routers` are pages and what else belongs to it."""
    app = FastAPI(
        title="Atoll coordinator",
        version=atoll.__version__,
        description=__doc__,
        docs_url=None,
        redoc_url=None,
    )
    app.state.here, app.state.manifest, app.state.name = here, manifest, "run"
    if manifest is not None:
        app.state.name = parse(protocol.Manifest, manifest.manifest.encode()).name
    for one in (router, *routers):
        app.include_router(one)
    for error, handler in HANDLERS.items():
        app.add_exception_handler(error, handler)
    describe = app.openapi

    def described() -> dict[str, Any]:
        schema = describe()
        schema["components"]["schemas"] = {**PARTS, **schema["components"]["schemas"]}
        return schema

    app.openapi = described  # type: ignore[method-assign]
    return app


async def _unsigned(http: Request, error: Any) -> Response:
    here_of(http).faults.note(f"request_{error.code}")
    status = 409 if error.code in ("replay", "update") else 401
    return refusal(status, error.code, str(error), now=here_of(http).clock.date())


async def _lease(http: Request, error: Any) -> Response:
    here_of(http).faults.note("lease_refused", error.code)
    return refusal(409, error.code, str(error))


async def _artifact(http: Request, error: Any) -> Response:
    if error.status != 404:
        here_of(http).faults.note("upload_refused", error.code)
    retry = {429: 600.0, 507: 60.0}.get(error.status)
    return refusal(error.status, error.code, str(error), retry)


async def _away(http: Request, error: Any) -> Response:
    here_of(http).faults.note("database_away" if isinstance(error, Away) else "store_away")
    return refusal(503, "away", "the coordinator's database or store is away; come back", RETRY)


async def _too_many(http: Request, error: Any) -> Response:
    here_of(http).faults.note("request_too_many")
    return refusal(429, "rate", str(error), error.seconds)


async def _cut(http: Request, error: Any) -> Response:
    """Nobody hears the answer."""
    here_of(http).faults.note("request_cut")
    return refusal(400, "cut", "the request ended before its end")


async def _http(http: Request, error: Any) -> Response:
    return refusal(error.status_code, "http", str(error.detail))


def _plain(status: int, code: str) -> Callable[[Request, Any], Any]:
    async def handler(http: Request, error: Any) -> Response:
        here_of(http).faults.note("request_refused", code)
        return refusal(status, code, str(error))

    return handler


HANDLERS: dict[type[Exception], Callable[[Request, Any], Any]] = {
    Unsigned: _unsigned,
    LeaseError: _lease,
    ArtifactError: _artifact,
    Away: _away,
    StorageError: _away,
    Interrupted: _away,
    TooMany: _too_many,
    ClientDisconnect: _cut,
    ProtocolError: _plain(400, "message"),
    keys.KeyProblem: _plain(401, "key"),
    NotYours: _plain(404, "missing"),
    TooLong: _plain(413, "size"),
    HTTPException: _http,
    RequestValidationError: lambda http, error: _plain(400, "request")(http, "the request is no request"),
}
