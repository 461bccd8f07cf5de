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
    row = callers.device(here.database, machine.id, here.clock.date())
    assert row.account == machine.name
    assert callers.device(here.database, machine.id, row.expires) is None
    assert callers.device(here.database, "0" * 64, 0.0) is None


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
