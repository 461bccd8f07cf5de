"""Servers of tiny random networks, in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from atoll.serve.app import create_app
from atoll.serve.limits import Limits
from atoll.serve.models import Model, open_models
from tests.serving import served


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Two experts and a router that are told classes, over pictures of 8 x 8."""
    return next(iter(open_models(served(tmp_path / "run", "class").path).values()))


Client = Callable[..., TestClient]


@pytest.fixture
def client(model: Model) -> Iterator[Client]:
    """Give a client of a server of that model, with whatever limits and doors."""
    opened: list[TestClient] = []

    def make(base_url: str = "http://testserver", limits: Limits | None = None, **door: Any) -> TestClient:
        app = create_app({model.name: model}, limits, **door)
        opened.append(TestClient(app, base_url=base_url).__enter__())
        return opened[-1]

    yield make
    for one in opened:
        one.__exit__(None, None, None)
