"""Pages for people: the run, the queue, the workers, what has become of each result; nothing here writes."""

from dataclasses import asdict
from typing import Any

import jinja2
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from atoll.net import explaining, standing, tiles
from atoll.net.api import PROBLEMS, here_of
from atoll.net.log import FOLDER
from atoll.serve import static_files
from atoll.serve.access import HEADERS
from atoll.serve.templates import ENVIRONMENT

TABS = [("/", "Run"), ("/queue", "Queue"), ("/workers", "Workers"), ("/submissions", "Results")]
PAGES = ENVIRONMENT.overlay(
    loader=jinja2.ChoiceLoader([jinja2.PackageLoader("atoll.net"), ENVIRONMENT.loader or jinja2.BaseLoader()])
)
router = APIRouter(include_in_schema=False)
public = APIRouter()


def page(template: str, tab: str, **facts: Any) -> HTMLResponse:
    """A page, filled in; everything in it is escaped."""
    text = PAGES.get_template(template).render(tabs=TABS, tab=tab, **facts)
    return HTMLResponse(text, headers={**HEADERS, "Cache-Control": "no-store"})


@router.get("/")
def run(http: Request) -> HTMLResponse:
    """How the run stands."""
    return page("run.html.j2", "Run", seen=standing.standing(here_of(http)), name=http.app.state.name)


@router.get("/queue")
def queue(http: Request) -> HTMLResponse:
    """What is not done yet."""
    return page("queue.html.j2", "Queue", rows=standing.queue(here_of(http)))


@router.get("/workers")
def workers(http: Request) -> HTMLResponse:
    """Who is there."""
    return page("workers.html.j2", "Workers", rows=standing.workers(here_of(http)))


@router.get("/submissions")
def submissions(http: Request) -> HTMLResponse:
    """What came in."""
    return page("submissions.html.j2", "Results", rows=standing.submissions(here_of(http)))


@router.get("/submissions/{number}")
def submission(http: Request, number: str) -> HTMLResponse:
    """What has become of one result."""
    row, lease = standing.submission(here_of(http), number)
    seen = explaining.unit(here_of(http), row.task)
    own = [pair for pair in seen.verdicts if pair[0].submission == row.id]
    return page("submission.html.j2", "Results", row=row, lease=lease, seen={"verdicts": own})


@router.get("/units/{number}")
def unit(http: Request, number: int) -> HTMLResponse:
    """Why one unit is where it is."""
    return page("unit.html.j2", "Queue", seen=explaining.unit(here_of(http), number))


@router.get("/accounts/{number}")
def account(http: Request, number: int) -> HTMLResponse:
    """What an account has done, what others found of it, what it earned."""
    return page("account.html.j2", "Workers", seen=explaining.account(here_of(http), number))


@public.get("/v1/run", responses=PROBLEMS)
def state(http: Request) -> dict[str, Any]:
    """How the run stands, for programs."""
    seen = standing.standing(here_of(http))
    facts = {key: value for key, value in asdict(seen).items() if key != "happenings"}
    events = [{"time": one.time, "kind": one.kind, **one.facts} for one in seen.happenings]
    return {**facts, "run": here_of(http).run, "events": events}


@public.get("/metrics", responses=PROBLEMS, response_class=PlainTextResponse)
def metrics(http: Request) -> PlainTextResponse:
    """The same for Prometheus."""
    seen = standing.standing(here_of(http))
    lines = [f'atoll_tasks{{state="{state}"}} {number}' for state, number in sorted(seen.tasks.items())]
    lines += [f'atoll_submissions{{state="{state}"}} {number}' for state, number in seen.submissions.items()]
    lines += [f"atoll_machines {seen.machines}", f"atoll_machines_awake {seen.awake}"]
    return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")


@public.get("/log/{name:path}", responses=PROBLEMS)
def log(http: Request, name: str) -> Response:
    """A file of the log, as C2SP's tlog-tiles lays them out."""
    if not is_tile(name):
        raise HTTPException(404, "the log has no such file")
    data = here_of(http).artifacts.store.read(f"{FOLDER}/{name}")
    if data is None:
        raise HTTPException(404, "the log has no such file yet")
    kind = "text/plain; charset=utf-8" if name == tiles.CHECKPOINT else "application/octet-stream"
    return Response(data, media_type=kind)


def is_tile(name: str) -> bool:
    """Whether a name is one that the log can have: nothing else of the store is read by it."""
    parts = name.split("/")
    plain = all(part and not part.startswith(".") and part.replace(".p", "").isalnum() for part in parts)
    return name == tiles.CHECKPOINT or (len(name) < 100 and parts[0] == "tile" and plain)


ROUTERS = (router, public, static_files.router)
