"""Clients that others wrote: OpenAI's, and one that asks whatever the description allows."""

import base64
import contextlib
import io
import os
import socket
import threading
import time

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from schemathesis import checks

from atoll.serve.app import create_app
from atoll.serve.limits import Limits
from tests.thorough import often

EXAMPLES = int(os.environ.get("ATOLL_EXAMPLES", often(10, 2)))
"""For each operation, right and wrong; by hand there may be more."""


@contextlib.contextmanager
def listening(app):
    """A real server in a thread, by its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_the_official_client(model):
    import openai

    with listening(create_app({model.name: model}, token="long enough")) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="long enough", max_retries=0)
        assert [one.id for one in client.models.list()] == ["run"]
        answer = client.images.generate(
            prompt="bag", n=2, size="256x256", response_format="b64_json", user="me"
        )
        images = [Image.open(io.BytesIO(base64.b64decode(one.b64_json))) for one in answer.data]
        assert [image.size for image in images] == [(256, 256)] * 2
        assert client.images.generate(model="run", prompt="boot", response_format="url").data[0].url
        with pytest.raises(openai.UnprocessableEntityError, match="there is no class 'shoe'"):
            client.images.generate(prompt="shoe")
        with pytest.raises(openai.NotFoundError, match="there is no model 'dall-e-2'"):
            client.images.generate(model="dall-e-2", prompt="bag")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.thorough(mode=schemathesis.GenerationMode.NEGATIVE)
def test_whatever_the_description_allows_or_forbids_is_answered_as_described(model, mode):
    """No server error, and no status, header, type or body that is not described."""
    with listening(create_app({model.name: model}, Limits(num=4, steps=8))) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        kept = [checks.not_a_server_error, *_conformance()]
        for operation in schema.get_all_operations():
            with contextlib.suppress(Unsatisfiable):  # what has no wrong way to be asked
                _ask(operation.ok().as_strategy(generation_mode=mode), kept)()


def _conformance():
    from schemathesis.specs.openapi import checks as described

    return [
        described.status_code_conformance,
        described.content_type_conformance,
        described.response_headers_conformance,
        described.response_schema_conformance,
    ]


def _ask(strategy, kept):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=strategy)
    def ask(case):
        case.call_and_validate(checks=kept)

    return ask
