"""The API from outside: whatever is sent, an answer of one shape, no server error, nothing written beyond."""

import contextlib
import json
import logging
import os

import pytest
import schemathesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from starlette.testclient import TestClient

from atoll.net import keys, pages, protocol, signing
from atoll.net.api import create_app
from atoll.net.artifacts import PIECE
from atoll.net.database import Database
from atoll.storage.clock import CLOCK
from tests.net.crowds import Machine, coordinator, sha
from tests.serve.test_clients import listening
from tests.thorough import often

EXAMPLES = int(os.environ.get("ATOLL_EXAMPLES", often(8, 2)))


class Signing:
    """As a worker signs, whatever it is told to send."""

    def __init__(self, device):
        self.device = device

    def __call__(self, request):
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        name = keys.identity(keys.public_hex(self.device))
        with contextlib.suppress(Exception):  # a target that cannot be signed is sent without
            signed = signing.sign(
                signing.Request(request.method, request.url), body, self.device, name, CLOCK.date()
            )
            request.headers.update(signed)
        return request


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.thorough(mode=schemathesis.GenerationMode.NEGATIVE)
def test_whatever_is_sent_signed_there_is_no_server_error(tmp_path, mode):
    from schemathesis.specs.openapi import checks as described

    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    here = coordinator(database, tmp_path, clock=CLOCK)
    device = Machine.of(here).device
    kept = [
        checks.not_a_server_error,
        described.status_code_conformance,
        described.response_schema_conformance,
    ]
    with listening(create_app(here, None, *pages.ROUTERS)) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for operation in schema.get_all_operations():
            with contextlib.suppress(Unsatisfiable):
                _ask(operation.ok().as_strategy(generation_mode=mode), kept, Signing(device))()
    database.close()


def _ask(strategy, kept, auth):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=strategy)
    def ask(case):
        case.call_and_validate(checks=kept, auth=auth)

    return ask


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/leases"),
        ("POST", "/v1/reconcile"),
        ("POST", "/v1/leases/x/heartbeat"),
        ("POST", "/v1/leases/x/submit"),
        ("PUT", f"/v1/files/{'a' * 64}"),
    ],
)
def test_every_change_is_signed_by_a_device_that_is_known(here, method, path):
    stranger = Machine.of(here)
    stranger.device = Ed25519PrivateKey.generate()
    stranger.id = keys.identity(keys.public_hex(stranger.device))
    unsigned = stranger.client.request(method, path, content=b"{}")
    assert unsigned.status_code == 401 and unsigned.json()["error"]["code"] == "unsigned"
    unknown = stranger.send(method, path, b"{}")
    assert unknown.status_code == 401 and unknown.json()["error"]["code"] == "stranger"


def test_bodies_are_bounded_whether_they_say_how_long_they_are_or_not(here):
    machine = Machine.of(here)
    assert machine.send("POST", "/v1/leases", b" " * (protocol.BODY + 1)).status_code == 413
    answer = machine.client.post("/v1/leases", content=(b" " * 65536 for _ in range(100)))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "size"
    assert machine.send("PUT", f"/v1/files/{'a' * 64}", bytes(PIECE + 1)).status_code == 413
    assert machine.client.post("/v1/leases", headers={"Content-Length": "-5"}).status_code == 413


def test_files_by_range(here):
    machine = Machine.of(here)
    data = os.urandom(25_000)
    assert machine.client.head(f"/v1/files/{sha(data)}").status_code == 404
    piece = {"Content-Range": f"bytes 0-9999/{len(data)}"}
    answer = machine.send("PUT", f"/v1/files/{sha(data)}", data[:10_000], **piece)
    assert answer.status_code == 202 and answer.json() == {"received": 9_999, "size": 25_000, "whole": False}
    assert machine.send("HEAD", f"/v1/files/{sha(data)}").headers["Upload-Offset"] == "9999", (
        "one byte comes twice"
    )
    gap = machine.send(
        "PUT", f"/v1/files/{sha(data)}", b"x", **{"Content-Range": f"bytes 20000-20000/{len(data)}"}
    )
    assert gap.status_code == 409 and gap.json()["error"]["code"] == "gap"
    assert machine.upload(data).status_code == 200
    assert machine.client.get(f"/v1/files/{sha(data)}").content == data
    part = machine.client.get(f"/v1/files/{sha(data)}", headers={"Range": "bytes=100-199"})
    assert part.status_code == 206 and part.content == data[100:200]
    assert machine.client.head(f"/v1/files/{sha(data)}").headers["Content-Length"] == "25000"
    for span in ("", "bytes 0-5/3", "bytes 5-4/10", "bytes a-b/c", "items 0-0/1", "bytes 0-1/1"):
        answer = machine.send(
            "PUT", f"/v1/files/{'b' * 64}", b"x", **({"Content-Range": span} if span else {})
        )
        assert answer.status_code in (400, 413), span


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fx", "a" * 63, "A" * 64, "%00", "x" * 5000])
def test_no_name_reaches_beyond_the_store(here, tmp_path, name):
    machine = Machine.of(here)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for method in ("GET", "HEAD", "PUT"):
        answer = machine.send(method, f"/v1/files/{name}", b"x", **{"Content-Range": "bytes 0-0/1"})
        assert 400 <= answer.status_code < 500
    after = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in after - before if "atoll.db" not in path.name} == set()


def test_a_database_that_is_away_is_nobodys_fault(tmp_path, postgresql):
    database = Database(postgresql.new(), patience=30)
    database.create()
    here = coordinator(database, tmp_path)
    machine = Machine.of(here)
    offer = machine.lease()
    postgresql.stop()
    try:
        answer = machine.send("POST", "/v1/leases", b"{}")
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
        assert answer.json()["error"]["code"] == "away" and "host=" not in answer.text
        assert machine.client.get("/healthz").status_code == 200
    finally:
        postgresql.start()
    assert machine.heartbeat(offer).verdict == "keep"
    database.close()


def test_a_database_that_somebody_holds_is_away_for_as_long(here):
    machine = Machine.of(here)
    here.database.patience = 0.05
    with here.database.writing():
        assert machine.send("POST", "/v1/leases", b"{}").status_code == 503
    assert machine.lease().kind == "lease"


def test_errors_have_one_shape_and_no_secret_is_logged(here, caplog):
    caplog.set_level(logging.DEBUG)
    machine = Machine.of(here)
    client = TestClient(create_app(here), base_url="http://host.example", raise_server_exceptions=False)
    for answer in (
        client.get("/nothing"),
        client.delete("/v1/leases"),
        client.post("/v1/accounts", content=b"{"),
        client.get("/v1/manifest"),
        client.get("/v1/submissions/x"),
        machine.send("POST", "/v1/leases", b"[]"),
    ):
        assert set(answer.json()) == {"error"}
        assert set(answer.json()["error"]) == {"code", "message", "retry_after", "now"}
    secret = machine.device.private_bytes_raw().hex()
    assert secret not in caplog.text and json.dumps({"x": 1}) not in caplog.text
