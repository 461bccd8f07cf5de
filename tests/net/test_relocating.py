"""A run that moves: signed by its coordinator, followed by workers, and by nobody else's word."""

import pytest
from benchmarks.churn import Inside
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import ConfigError, CorruptError
from atoll.net import client, keys, log, protocol, relocating, statements
from atoll.net.api import create_app
from atoll.net.books import Books
from atoll.net.database import Database
from atoll.net.statements import Signer
from tests.clocks import ManualClock
from tests.net.crowds import RUN, coordinator
from tests.net.joined import lent, served, work_on

NEW = ("https://new.example.org", "https://other.example.org")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def here(tmp_path):
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    yield coordinator(database, tmp_path, book=Books(Signer(KEY, RUN)))
    database.close()


def manifest(key=KEY, **changes):
    facts = {"name": "a", "resolved": {}, "coordinator": keys.public_hex(key), **changes}
    return protocol.Manifest(**facts)


def test_a_notice_is_in_the_log_and_said_once(here):
    signed = relocating.announce(here, KEY, NEW)
    assert relocating.announce(here, KEY, NEW) == signed == relocating.notice(here.database)
    with here.database.reading() as session:
        entries = [statements.opened(entry.envelope) for entry in session.query(log.Entry)]
    assert [one.facts["addresses"] for one in entries if one.kind == "relocation"] == [list(NEW)]
    assert relocating.is_elsewhere(here.database, ("https://old.example.org",))
    assert not relocating.is_elsewhere(here.database, NEW[1:])
    with pytest.raises(ConfigError, match="moves to addresses like"):
        relocating.announce(here, KEY, ("new.example.org",))


def test_only_the_coordinator_of_the_run_can_say_so(here):
    known = manifest()
    here.run = known.digest
    signed = relocating.announce(here, KEY, NEW)
    assert relocating.checked(signed, known).addresses == NEW
    with pytest.raises(CorruptError, match="not signed by its coordinator"):
        relocating.checked(signed, manifest(Ed25519PrivateKey.generate()))
    with pytest.raises(CorruptError, match="of another run"):
        relocating.checked(signed, manifest(name="b"))
    forged = signed.model_copy(update={"relocation": signed.relocation.replace("new", "bad")})
    with pytest.raises(CorruptError, match="not signed"):
        relocating.checked(forged, known)
    plain = KEY.sign(signed.relocation.encode()).hex()
    with pytest.raises(CorruptError, match="not signed"):
        relocating.checked(signed.model_copy(update={"signature": plain}), known)


def test_workers_follow_and_remember(run_of_units, recorded, tmp_path):
    """Two addresses of one coordinator: the second is where the run is said to be now."""
    home = tmp_path / "home"
    with served(run_of_units) as (hosted, url):
        work_on(lent(url, home, start=recorded), once=True)
        second = url.replace("127.0.0.1", "localhost")
        moved = lent(url, home, start=recorded)
        key = keys.read_or_make(run_of_units.path / "network" / "coordinator.key")
        relocating.announce(hosted.coordinator, key, (second,))
        elsewhere = Gate(hosted.coordinator)
        hosted.coordinator.__class__ = elsewhere.kind
        try:
            answer = work_on(moved, once=True)
        finally:
            hosted.coordinator.__class__ = elsewhere.before
        assert answer["submitted"] == 1
        assert next(one for one in moved.faults if one["event"] == "moved")["addresses"] == [second]
        assert (home / "moved.json").is_file()
        again = lent(url, home, start=recorded).worker()
        assert again.machine.client.addresses[0] == second
        again.machine.client.close()


class Gate:
    """A coordinator that has moved for its first request only: the second address is the same process."""

    def __init__(self, here):
        self.before = type(here)
        asked = []

        def moved(self):
            asked.append(1)
            return len(asked) == 1

        self.kind = type("Moved", (self.before,), {"moved": property(moved, lambda self, value: None)})


def test_a_moved_coordinator_writes_nothing(here):
    from tests.net.crowds import Machine

    machine = Machine.of(here)
    here.moved = True
    for method, path in (("POST", "/v1/leases"), ("POST", "/v1/accounts"), ("PUT", f"/v1/files/{'0' * 64}")):
        answer = machine.send(method, path, b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "moved")
    assert machine.client.get("/v1/relocation").status_code == 404
    relocating.announce(here, KEY, NEW)
    assert machine.client.get("/v1/relocation").json()["key"] == keys.public_hex(KEY)


def test_a_client_that_has_no_manifest_is_not_led_away(here):
    here.moved = True
    relocating.announce(here, KEY, NEW)
    inside = Inside(create_app(here))
    one = client.Client(
        ["http://host.example"], Ed25519PrivateKey.generate(), clock=ManualClock(), transport=inside
    )
    with pytest.raises(client.Refused, match="served elsewhere"):
        one.reconcile(protocol.Reconcile())
    one.close()
    inside.end()
