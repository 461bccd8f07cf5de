"""States that a worker keeps of what it handed in, and shows if somebody asks for them."""

import os

from atoll.net.home import Home
from atoll.net.protocol import File, LeaseOffer, Numerics, Receipt, Result, Unit
from atoll.net.showing import Showcase
from atoll.net.verification.asking import state_name
from atoll.net.work import KEPT, _keep

UNIT = Unit(run="e" * 64, name="u", stage="expert 0", role="train", first=0, last=30, every=10)
OFFER = LeaseOffer(lease="l", unit=UNIT, fence=1, heartbeat_s=60, soft_deadline=1, hard_deadline=2, now=0)
RECEIPT = Receipt(submission="s", lease="l", unit=UNIT.digest, result="1" * 64, state="checked", final=False)


class Asked:
    """A client that remembers what it was given."""

    def __init__(self):
        self.uploads, self.shown = [], []

    def upload(self, path, file):
        self.uploads.append((path.read_bytes(), file.path))

    def show(self, submission, message):
        self.shown.append((submission, [file.path for file in message.files]))


def test_states_are_kept_until_nobody_asks_any_more(tmp_path, monkeypatch):
    home, client = Home(tmp_path), Asked()
    held = home.hold(OFFER, {})
    states = held.run / "experts/00/state"
    states.mkdir(parents=True)
    for step in (0, 10, 20, 30):
        (states / state_name(step)).write_bytes(f"state {step}".encode())
        _keep(states / state_name(step), held.folder / KEPT, UNIT)
    last = File(path=f"experts/00/state/{state_name(30)}", sha256="2" * 64, size=8)
    showcase = Showcase(home)
    showcase.keep(held, Result(unit=UNIT.digest, outputs=(last,), numerics=Numerics()), "s")
    held.drop()
    assert list(showcase.submissions()) == ["s"]
    assert showcase.show(client, RECEIPT) == [], "nobody has asked yet"
    asked = RECEIPT.model_copy(update={"wanted": (10, 20)})
    assert showcase.show(client, asked) == [10, 20]
    assert client.uploads == [
        (f"state {step}".encode(), f"experts/00/state/{state_name(step)}") for step in (10, 20)
    ]
    assert client.shown == [("s", [path for _, path in client.uploads])]
    assert showcase.show(client, RECEIPT.model_copy(update={"wanted": (10, 25)})) == [], "not all are here"
    showcase.forget("s")
    assert list(showcase.submissions()) == []


def test_where_there_is_no_room_for_all_none_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("atoll.net.work.ROOM", 20)
    state = tmp_path / state_name(10)
    state.write_bytes(bytes(10))
    _keep(state, tmp_path / KEPT, UNIT)
    assert not (tmp_path / KEPT).exists() or not os.listdir(tmp_path / KEPT)
