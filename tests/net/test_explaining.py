"""Pages that say why a unit is where it is, and what is known of an account."""

import pytest
from starlette.testclient import TestClient

from atoll.net import explaining, pages
from atoll.net.api import create_app
from atoll.net.results import NotYours
from atoll.net.tables import Account, TaskRow
from tests.net.policed import small


def test_every_state_of_a_segment_has_its_sentence(tmp_path):
    world = small(tmp_path)
    ann, bob = world.machine(), world.machine()

    def sentence():
        return explaining.unit(world.here, 1).sentence

    assert "given to the next machine" in sentence()
    offer = ann.lease()
    assert sentence() == "A machine works on it."
    ann.submit(offer)
    assert "beacon's next round" in sentence()
    world.tick()
    assert "its maker is asked for the states of steps 10" in sentence()
    ann.show()
    world.tick()
    assert "another account replays" in sentence()
    bob.work(roles=("audit",))
    assert "nobody disputes it any more" in sentence()
    client = TestClient(create_app(world.here, None, *pages.ROUTERS), base_url="http://host.example")
    text = client.get("/units/1").text
    for words in ("final", "replay", "pass", "audit expert 0", "account 1", "account 2"):
        assert words in text
    numbers = {row.id: row.number for row in world.rows(Account)}
    text = client.get(f"/accounts/{numbers[ann.name]}").text
    for words in ("1 audits passed", "expert 0", "escrow", "1,000", "another account", "verified work"):
        assert words in text, words
    assert ann.name not in text and bob.name not in text
    assert "this account" in client.get(f"/accounts/{numbers[bob.name]}").text
    submission = next(iter(ann.kept))
    assert "Why the unit is where it is" in client.get(f"/submissions/{submission}").text
    assert client.get("/accounts/99").status_code == client.get("/units/99").status_code == 404
    with pytest.raises(NotYours):
        explaining.unit(world.here, 99)
    assert {row.state for row in world.rows(TaskRow)} <= {*explaining.STATES, "checked"}
    world.database.close()
