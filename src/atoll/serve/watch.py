"""The live view: a page whose parts ask for themselves again and again while the run goes on."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from atoll.runs import graph, previews
from atoll.serve.templates import page, tabs
from atoll.serve.view import View

STOP_POLLING = 286
"""The status by which htmx is told that nothing more will come."""
SHOWN = 6
"""Previews of one job, from the first to the newest."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""A report is one file with its style and pictures inside, and no scripts."""

router = APIRouter(include_in_schema=False)


def view_of(http: Request) -> View:
    """What is watched here; routes depend on it."""
    view: View | None = getattr(http.app.state, "view", None)
    if view is None:
        raise HTTPException(404, "there is no run to watch here")
    return view


Watched = Annotated[View, Depends(view_of)]
Have = Annotated[int, Query(ge=-1)]


@router.get("/watch")
def watch(http: Request, view: Watched) -> Response:
    """The page."""
    seen = view.look()
    return page(
        "watch.html.j2",
        seen=seen,
        strips=strips(view),
        tabs=tabs(http.app.state),
        tab="Live",
        jobs=[stage for stage in seen.stages if stage.is_job and stage.steps],
    )


@router.get("/watch/state")
def state(view: Watched) -> Response:
    """How far everything is."""
    seen = view.look()
    return page("state.html.j2", STOP_POLLING if seen.finished else 200, seen=seen)


@router.get("/watch/events")
def events(view: Watched, have: Have = -1) -> Response:
    """What happened, if that is more than what is on the page."""
    seen = view.look()
    return Response(status_code=204) if seen.events_seen == have else page("events.html.j2", seen=seen)


@router.get("/watch/previews")
def all_previews(view: Watched, have: Have = -1) -> Response:
    """What each job draws, if that is more than what is on the page."""
    shown = strips(view)
    count = sum(strip.number for strip in shown)
    return Response(status_code=204) if count == have else page("previews.html.j2", strips=shown)


@router.get("/watch/previews/{slug}/{step}.png")
def preview(view: Watched, slug: str, step: int) -> Response:
    """One picture; names come from the graph and from the folder, not from the request."""
    for node in graph.made(view.run):
        if node.name.replace(" ", "-") == slug:
            path = dict(previews.listed(node.stage.path)).get(step)
            if path is not None:
                headers = {"Cache-Control": "private, max-age=86400"}
                return Response(path.read_bytes(), media_type="image/png", headers=headers)
    raise HTTPException(404, "there is no such preview")


@router.get("/watch/curves")
def curves(view: Watched, since: Have = -1) -> dict[str, object]:
    """The curves that have changed since a version, by job and quantity."""
    seen = view.look()
    return {"version": seen.version, "jobs": view.since(since)}


@router.get("/watch/report")
def report(view: Watched) -> Response:
    """The page of the finished run, as it was written."""
    data = view.report()
    if data is None:
        raise HTTPException(404, "the report is not written yet")
    return Response(data, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


@dataclass(frozen=True)
class Strip:
    """Some previews of one job."""

    name: str
    index: int
    is_expert: bool
    number: int
    """Of all its previews."""
    steps: list[int]

    @property
    def slug(self) -> str:
        """The name where a name must not have spaces."""
        return self.name.replace(" ", "-")


def strips(view: View) -> list[Strip]:
    """Of every job that draws, a few of its pictures from the first to the newest."""
    rows = []
    for node in graph.made(view.run):
        listed = previews.listed(node.stage.path) if node.is_job else []
        if listed:
            steps = [step for step, _ in listed]
            chosen = spread(steps, SHOWN)
            rows.append(Strip(node.name, node.index, node.kind.name == "expert", len(steps), chosen))
    return rows


def spread(steps: list[int], most: int) -> list[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(steps) <= most:
        return steps
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]
