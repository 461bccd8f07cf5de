"""Samples over HTTP: requests of many users stepped together, an API with limits, pages for people."""

import importlib.util

from atoll.errors import ConfigError

LIBRARIES = ("fastapi", "uvicorn", "sse_starlette", "prometheus_client")
"""What the extra `serve` brings."""


def require_libraries() -> None:
    """Say what is missing, and how to get it, before anything is imported."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}; pip install 'atoll[serve]'")
