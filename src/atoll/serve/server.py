"""From an address and a port to a server that runs until it is asked to stop."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from atoll.serve import listening, playground, static_files, watch
from atoll.serve.app import create_app
from atoll.serve.limits import Limits
from atoll.serve.models import open_models
from atoll.serve.policies import Policies, read
from atoll.serve.view import View

PAGES = (playground.router, static_files.router, watch.router)
SWITCH = 5e-4
"""Seconds after which a thread that answers lets the model go on, which asks for it after every product."""


def serve(
    address: Path,
    host: str,
    port: int,
    limits: Limits,
    *,
    token: str | None = None,
    anybody: bool = False,
    show_data: bool = False,
    policies: Path | None = None,
    ready: Callable[[str], None] = lambda url: None,
    **settings: Any,
) -> None:
    """Serve a finished run; `ready` is told the address as soon as requests are taken."""
    known = Policies() if policies is None else read(policies)
    guarded = anybody or bool(known.tokens)  # users' own tokens guard as well as the server's
    listening.check_door(host, token, guarded)
    sys.setswitchinterval(SWITCH)
    hosts = listening.hosts_of(host, token, guarded)
    models = open_models(address, **settings)
    app = create_app(
        models, limits, token=token, hosts=hosts, pages=PAGES, policies=known, show_data=show_data
    )
    app.state.view = View.of(address)
    Server(app, host, port, limits, ready).run()


class Server(listening.Server):
    """Takes no more requests once it is asked to stop."""

    def __init__(
        self, app: FastAPI, host: str, port: int, limits: Limits, ready: Callable[[str], None]
    ) -> None:
        super().__init__(app, host, port, ready, limits.grace)
        self._app, self._grace = app, limits.grace

    async def shutdown(self, sockets: Any = None) -> None:
        """Finish what is under way within the grace; who is not done then gets a clean answer."""
        scheduler = self._app.state.service.scheduler
        scheduler.finish_within(self._grace)
        await super().shutdown(sockets)
