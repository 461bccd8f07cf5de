"""A run on strangers' machines: a coordinator that hands out work over HTTPS, and workers that join it."""

import importlib.util

from atoll.errors import ConfigError

LIBRARIES = (
    "alembic",
    "cryptography",
    "fastapi",
    "http_message_signatures",
    "httpx",
    "mnemonic",
    "prometheus_client",
    "sqlalchemy",
    "uvicorn",
)
"""What the extra `net` brings."""


def require_libraries() -> None:
    """Say what is missing, and how to get it, before anything is imported."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"a run over the network needs {', '.join(missing)}; pip install 'atoll[net]'")
