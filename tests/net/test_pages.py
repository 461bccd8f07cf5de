"""Pages for people: what is on them, that nothing in them is a script, and what they must not tell."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.testclient import TestClient

from atoll.net import pages
from atoll.net.api import create_app
from tests.net.crowds import Machine


@pytest.fixture
def client(here):
    return TestClient(create_app(here, None, *pages.ROUTERS), base_url="http://host.example")


def test_pages_tell_what_there_is(here, client):
    assert "Nobody is here yet" in client.get("/").text
    machine = Machine.of(here)
    receipt = machine.work()
    machine.lease()
    for path, words in {
        "/": ["expert 0", "1 machine", "units accepted"],
        "/queue": ["leased", "expert"],
        "/workers": ["account 1", machine.id[:8]],
        "/submissions": ["accepted", f"/submissions/{receipt.submission}"],
        f"/submissions/{receipt.submission}": ["accepted", "the run goes on from it", "1,000 of 1,000"],
    }.items():
        answer = client.get(path)
        assert answer.status_code == 200 and "script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert [word for word in words if word not in answer.text] == []
        assert machine.name not in answer.text, "nobody's account is on a page in full"
    assert client.get("/submissions/nothing").status_code == 404
    machine.release(machine.lease(), failed=True)
    assert "unit failed" in client.get("/").text and machine.id not in client.get("/").text


def test_what_a_stranger_calls_itself_is_text(here, client):
    from atoll.net import keys, protocol

    machine = Machine.of(here)
    machine.device = Ed25519PrivateKey.generate()
    machine.account = Ed25519PrivateKey.generate()
    machine.id = keys.identity(keys.public_hex(machine.device))
    delegation = keys.delegate(machine.account, keys.public_hex(machine.device), here.clock.date() + 100)
    message = protocol.Join(delegation=delegation, nickname="<script>alert(1)</script>")
    assert machine.post("/v1/accounts", message).status_code == 200
    assert "<script>alert" not in client.get("/workers").text
    assert "&lt;script&gt;alert" in client.get("/workers").text


def test_programs_have_the_same(here, client):
    Machine.of(here).work()
    state = client.get("/v1/run").json()
    assert state["tasks"] == {"accepted": 1, "open": 2} and state["machines"] == 1
    assert 'atoll_tasks{state="accepted"} 1' in client.get("/metrics").text


def test_only_files_of_the_log_are_read_from_the_store(here, client):
    here.artifacts.store.write("log/checkpoint", b"a note")
    here.artifacts.store.write("log/tile/0/000", b"hashes")
    here.artifacts.store.write("secret", b"no")
    assert client.get("/log/checkpoint").content == b"a note"
    assert client.get("/log/tile/0/000").content == b"hashes"
    for name in (
        "../secret",
        "..%2fsecret",
        "tile/../../secret",
        "tile//0",
        "tile/.hidden",
        "secret",
        "tile/0/001",
    ):
        assert client.get(f"/log/{name}").status_code == 404, name
