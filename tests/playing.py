"""Pages of a server in a real browser: Debian's Chromium, driven by playwright."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from atoll.serve.listening import Server
from tests.browser import chromium

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
]
WIDTHS = {390: 844, 1280: 900}
"""Widths of windows, and their heights."""
PATIENCE = 300_000.0
"""Milliseconds for which something may take to appear."""


@contextlib.contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """The address of a server of this application, in a thread of its own."""
    ready, address = threading.Event(), list[str]()

    def tell(url: str) -> None:
        address.append(url)
        ready.set()

    server = Server(app, "127.0.0.1", 0, tell)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(600)
    try:
        yield address[0]
    finally:
        server.should_exit = True
        thread.join(600)


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Visit(NamedTuple):
    """An open page, what it complained of and what it asked others for."""

    page: Any
    complaints: list[str]
    elsewhere: list[str]


@contextlib.contextmanager
def visiting(browser: Any, url: str, width: int = 1280, scheme: str = "light") -> Iterator[Visit]:
    """One page in a window of this width, dark or light."""
    context = browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]}, color_scheme=scheme, accept_downloads=True
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    visit = Visit(page, [], [])
    page.on(
        "console", lambda message: visit.complaints.append(message.text) if message.type == "error" else 0
    )
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    origin = "/".join(url.split("/")[:3])
    page.on("request", lambda one: visit.elsewhere.append(one.url) if not is_own(one.url, origin) else None)
    page.goto(url)
    yield visit
    context.close()


def is_own(url: str, origin: str) -> bool:
    return url.startswith((f"{origin}/", "data:", "blob:"))


def check(visit: Visit) -> None:
    """Nothing serious by axe, nothing wider than the window, no complaint, nothing from elsewhere."""
    page = visit.page
    # The page's own policy forbids scripts of others; axe comes by the browser's door.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    answer = page.evaluate("async () => (await axe.run(document)).violations")
    serious = [
        (one["id"], [node["html"] for node in one["nodes"]])
        for one in answer
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == [], serious
    wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{wide} pixels wider than the window"
    assert visit.complaints == []
    assert visit.elsewhere == []


def keep(visit: Visit, name: str) -> None:
    """A picture of the whole page, where somebody wants one: in $ATOLL_PICTURES."""
    if folder := os.environ.get("ATOLL_PICTURES"):
        visit.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
