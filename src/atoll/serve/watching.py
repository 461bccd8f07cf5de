"""The live view alone: `atoll watch`, beside a training and without its networks."""

from collections.abc import Callable, Collection
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import RedirectResponse

from atoll.serve import static_files, watch
from atoll.serve.access import Door
from atoll.serve.listening import Server, check_door, hosts_of
from atoll.serve.view import View

BODY = 1024
"""Bytes of a request: nothing is ever sent here."""


def create_watch_app(
    view: View, *, token: str | None = None, hosts: Collection[str] | None = None
) -> FastAPI:
    """An application that shows one run while it is made."""
    app = FastAPI(title="Atoll", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.view = view
    app.include_router(static_files.router)
    app.include_router(watch.router)
    app.add_middleware(Door, token=token, body=BODY, hosts=hosts)

    @app.get("/")
    def start() -> RedirectResponse:
        return RedirectResponse("/watch")

    return app


def serve_view(
    address: Path,
    host: str,
    port: int,
    *,
    token: str | None = None,
    anybody: bool = False,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Show a run to whoever opens the address that `ready` is told, until it is stopped."""
    check_door(host, token, anybody)
    app = create_watch_app(View.open(address), token=token, hosts=hosts_of(host, token, anybody))
    Server(app, host, port, ready).run()
