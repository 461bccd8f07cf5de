"""Who may reach a server, and a server that says when it can be reached."""

import ipaddress
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from atoll.errors import ConfigError

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, by which a server without a token is asked."""

KEEP_ALIVE = 75
"""Seconds for which a connection may be idle. Clients keep theirs for less: who closes first does not ask."""


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_door(host: str, token: str | None, anybody: bool) -> None:
    """Refuse to let strangers in unasked."""
    if token is not None and len(token) < 8:
        raise ConfigError("a token of fewer than 8 characters is guessed; take a longer one")
    if not is_local(host) and token is None and not anybody:
        raise ConfigError(
            f"whoever reaches {host} could use this server; give --token, or --open to let anybody"
        )


def hosts_of(host: str, token: str | None, anybody: bool) -> set[str] | None:
    """The names by which a server lets itself be asked; None is any, where a token or nobody guards it."""
    return None if token or anybody else {*LOCAL, host}


class Server(uvicorn.Server):
    """Tells when it is ready."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, ready: Callable[[str], None], grace: float = 0.0
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(grace) + 5,
            )
        )
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        """Open the port and say so."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
