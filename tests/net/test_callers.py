"""Who may ask, and how often the same request."""

import pytest

from atoll.net import callers
from atoll.net.signing import Signed, Unsigned
from atoll.net.tables import Nonce
from tests.net.crowds import Machine, coordinator


@pytest.fixture
def here(database, tmp_path):
    return coordinator(database, tmp_path)


def test_a_device_is_known_until_its_delegation_expires(here):
    machine = Machine.of(here)
    known = here.device(machine.id)
    assert known.account == machine.name and known.key == machine.device.public_key()
    assert here.devices.find(machine.id, known.expires) is None
    assert here.device("0" * 64) is None


def test_a_device_is_looked_up_once_and_again_when_its_delegation_has_expired(here, monkeypatch):
    """A stranger becomes known by joining, and one whose time is over by a newer delegation."""
    machine = Machine.of(here)
    looks = []
    reading = here.database.reading

    def counted():
        looks.append(1)
        return reading()

    monkeypatch.setattr(here.database, "reading", counted)
    first = here.device(machine.id)
    assert here.device(machine.id) is first and len(looks) == 1
    here.clock.time += first.expires - here.clock.date()
    assert here.device(machine.id) is None and here.device(machine.id) is None
    machine.join()
    assert here.device(machine.id).expires > first.expires


def test_a_nonce_is_good_once_for_each_key(here):
    with here.database.writing() as session:
        callers.once(session, Signed("a" * 64, "n" * 20, 10.0))
        callers.once(session, Signed("b" * 64, "n" * 20, 10.0))
    with pytest.raises(Unsigned) as caught, here.database.writing() as session:
        callers.once(session, Signed("a" * 64, "n" * 20, 10.0))
    assert caught.value.code == "replay"
    with here.database.reading() as session:
        assert session.query(Nonce).count() == 2


def test_joining_twice_is_joining_once(here):
    machine = Machine.of(here)
    first = machine.join().json()
    here.clock.time += 5
    again = machine.join().json()
    assert again == {**first, "now": first["now"] + 5}
    assert machine.send("POST", "/v1/accounts", b'{"protocol": 2}').status_code == 400
