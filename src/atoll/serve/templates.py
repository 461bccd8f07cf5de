"""Pages filled in: everything that is put into one is escaped, and nothing in one is a script."""

import time
from pathlib import Path
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse

from atoll.launch.remaining import clock_time

COLOURS = 8
"""Experts have colours in turn, e0 to e7 of the style sheet."""


def clock(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds; nothing where nobody knows."""
    return "" if seconds is None else clock_time(seconds)


def moment(when: float) -> str:
    """A time of day, with the day where it is not today."""
    local = time.localtime(when)
    today = local[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", local)


def mebibytes(number: float) -> str:
    """Bytes as a person says them."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


ENVIRONMENT = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "clock": clock,
    "moment": moment,
    "mebibytes": mebibytes,
    "colour": lambda index: f"e{index % COLOURS}",
}


def tabs(state: Any) -> list[tuple[str, str]]:
    """The pages that an application has, by address and name."""
    pages = [("/", "Playground")] if getattr(state, "service", None) else []
    return pages + ([("/watch", "Live")] if getattr(state, "view", None) else [])


def page(name: str, status: int = 200, **facts: Any) -> HTMLResponse:
    """A page, or a part of one."""
    text = ENVIRONMENT.get_template(name).render(**facts)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
