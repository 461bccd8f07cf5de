"""Every fault of a request is found among the events, by its name."""

import socket

import httpx
import pytest
from sqlalchemy import select

from atoll.net import artifacts, keeping, signing
from atoll.net.api import create_app
from atoll.net.database import Away, Database
from atoll.net.faults import Faults
from atoll.net.pacing import Pace
from atoll.net.tables import Happening
from atoll.storage.clock import CLOCK
from tests.net.crowds import Machine, coordinator, sha
from tests.serve.test_clients import listening


@pytest.fixture
def here(tmp_path):
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    yield coordinator(database, tmp_path)
    database.close()


def events(here):
    """Kind and code of each, with how often."""
    here.faults.write(here.database, here.clock.date())
    with here.database.reading() as session:
        rows = session.scalars(select(Happening).order_by(Happening.id))
        return {
            (row.kind, row.facts.get("code", "")): row.facts["count"] for row in rows if "count" in row.facts
        }


def put(machine, data, span, digest=None):
    return machine.send("PUT", f"/v1/files/{digest or sha(data)}", data, **{"Content-Range": span})


def test_a_thousand_of_a_kind_are_one_line(here):
    faults = Faults()
    for _ in range(1000):
        faults.note("upload_refused", "digest")
    faults.note("request_cut")
    assert faults.write(here.database, 5.0) == 2
    assert faults.write(here.database, 6.0) == 0
    assert events(here) == {("upload_refused", "digest"): 1000, ("request_cut", ""): 1}


def test_what_cannot_be_written_is_written_later(here):
    here.faults.note("database_away")
    with here.database.writing():
        here.database.patience = 0.001
        with pytest.raises(Away):
            here.faults.write(here.database, 0.0)
        here.faults.note("database_away")
    here.database.patience = 5
    assert events(here) == {("database_away", ""): 2}


def test_refused_uploads(here, monkeypatch):
    machine = Machine.of(here)
    assert put(machine, b"abc", "bytes 0-2/3", digest="0" * 64).status_code == 422
    assert put(machine, b"abc", "bytes 5-7/9").status_code == 409
    assert put(machine, b"abc", f"bytes 0-2/{1 << 60}").status_code == 400
    assert put(machine, b"abc", f"bytes 0-2/{1 << 40}").status_code == 413
    monkeypatch.setattr(artifacts, "SPARE", 1 << 60)
    assert put(machine, b"abc", "bytes 0-2/3").status_code == 507
    monkeypatch.undo()
    here.artifacts.hourly = 1
    assert put(machine, b"abc", "bytes 0-2/3").status_code == 429
    codes = {code for kind, code in events(here) if kind == "upload_refused"}
    assert codes == {"digest", "gap", "size", "full", "quota"}


def test_a_locked_database_and_a_store_that_is_away(here, monkeypatch):
    machine = Machine.of(here)
    with here.database.writing():
        here.database.patience = 0.001
        assert machine.send("POST", "/v1/reconcile", b"{}").status_code == 503
    here.database.patience = 5

    def away(*arguments):
        from atoll.errors import StorageError

        raise StorageError("the bucket is away")

    monkeypatch.setattr(here.artifacts.store, "upload", away)
    assert put(machine, b"abc", "bytes 0-2/3").status_code == 503
    assert {("database_away", ""), ("store_away", "")} <= set(events(here))


def test_wrong_clocks_replays_strangers_and_keys_that_ask_too_often(here):
    machine = Machine.of(here)
    assert machine.send("POST", "/v1/reconcile", b"{}", now=here.clock.date() - 7200).status_code == 401
    assert machine.client.post("/v1/reconcile", content=b"{}").status_code == 401
    url = "http://host.example/v1/reconcile"
    signed = signing.sign(signing.Request("POST", url), b"{}", machine.device, machine.id, here.clock.date())
    answers = [machine.client.post("/v1/reconcile", content=b"{}", headers=signed) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 409]
    assert Machine(machine.client, here.clock).send("POST", "/v1/reconcile", b"{}").status_code == 401
    here.pace = Pace(rate=0.1, burst=1.0)
    answers = [machine.send("POST", "/v1/reconcile", b"{}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert int(answers[1].headers["retry-after"]) >= 9
    kinds = {kind for kind, _ in events(here)}
    assert kinds == {
        "request_clock",
        "request_unsigned",
        "request_replay",
        "request_stranger",
        "request_too_many",
    }


def test_a_connection_that_is_cut_within_a_request_changes_nothing(tmp_path):
    """Half a body arrives, then nobody is there any more; on every endpoint, by a real socket."""
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    here = coordinator(database, tmp_path, clock=CLOCK)
    machine = Machine.of(here)
    offer = machine.lease()
    paths = [("POST", f"/v1/{name}") for name in ("accounts", "leases", "reconcile")]
    paths += [("POST", f"/v1/leases/{offer.lease}/{name}") for name in ("heartbeat", "progress", "submit")]
    paths += [("POST", f"/v1/leases/{offer.lease}/release"), ("POST", "/v1/submissions/none/states")]
    paths += [("PUT", f"/v1/files/{'0' * 64}")]
    with listening(create_app(here)) as address:
        host, port = address.removeprefix("http://").split(":")
        for method, path in paths:
            body = b'{"fence": 1, "and": "more"}'
            signed = signing.sign(
                signing.Request(method, f"{address}{path}"), body, machine.device, machine.id, CLOCK.date()
            )
            lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in signed.items()]
            with socket.create_connection((host, int(port))) as wire:
                wire.sendall("\r\n".join([*lines, "", ""]).encode() + body[: len(body) // 2])
        assert httpx.get(f"{address}/healthz").status_code == 200
        for _ in range(200):
            with here.faults._guard:
                cut = here.faults._counts["request_cut", ""]
            if cut == len(paths):
                break
            CLOCK.sleep(0.02)
    assert events(here) == {("request_cut", ""): len(paths)}
    assert machine.heartbeat(offer).verdict == "keep", "the lease is as it was"
    database.close()


def test_old_happenings_are_forgotten(here, monkeypatch):
    monkeypatch.setattr(keeping, "REMEMBERED", 3)
    for number in range(9):
        here.faults.note(f"kind {number}")
    here.faults.write(here.database, 0.0)
    keeping.sweep(here)
    assert len(events(here)) == 3
