"""What the store loses comes back from whoever has it."""

from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy import select

from atoll.net import holding, protocol
from atoll.net.artifacts import name_of
from atoll.net.client import Client
from atoll.net.home import Home
from atoll.net.tables import Happening
from tests.net.crowds import Machine, coordinator, expected, files_of, sha, state
from tests.net.joined import Quiet

FIRST = state("expert 0", 20)
"""What is there of the first training after a segment."""


class Passed(httpx.BaseTransport):
    """Requests to an application in this process."""

    def __init__(self, client) -> None:
        self._client = client

    def handle_request(self, request):
        path, headers = request.url.raw_path.decode(), dict(request.headers)
        answer = self._client.request(request.method, path, content=request.read(), headers=headers)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def here(database, tmp_path):
    return coordinator(database, tmp_path)


def lose(here, data: bytes) -> None:
    here.artifacts.store.delete([name_of(sha(data))])


def kinds(here) -> list[str]:
    with here.database.reading() as session:
        return list(session.scalars(select(Happening.kind).order_by(Happening.id)))


def advice(machine: Machine, *digests: str) -> dict[str, str]:
    answer = machine.post("/v1/reconcile", protocol.Reconcile(files=digests))
    return answer.json()["files"]


def test_a_lost_file_is_asked_for_and_taken_again(here):
    machine, care = Machine.of(here), holding.Care()
    machine.work()
    assert care.look(here) == {} and advice(machine, sha(FIRST), "0" * 64) == {
        sha(FIRST): "keep",
        "0" * 64: "drop",
    }
    lose(here, FIRST)
    assert care.look(here) == {sha(FIRST): "expert/0/step-20"}
    assert machine.client.get(f"/v1/files/{sha(FIRST)}").status_code == 404, "nobody is sent in vain"
    assert advice(machine, sha(FIRST), "0" * 64) == {sha(FIRST): "submit", "0" * 64: "drop"}
    machine.upload(FIRST)
    assert care.look(here) == {} and advice(machine, sha(FIRST)) == {sha(FIRST): "keep"}
    assert [kind for kind in kinds(here) if kind.startswith("file_")] == ["file_lost", "file_restored"]
    for _ in range(4):
        machine.work()
    assert files_of(here) == expected(here.plan)


def test_all_files_are_looked_after_in_turn(here):
    machine, care = Machine.of(here), holding.Care()
    for _ in range(4):
        machine.work()
    names = sorted(files_of(here))
    assert len(names) == 2
    for name in names:
        lose(here, files_of(here)[name])
        break
    found = [dict(care.look(here, 1)) for _ in range(3)]
    assert [list(one.values()) for one in found] == [names[:1]] * 3
    assert kinds(here).count("file_lost") == 1, "told of once"


def test_a_worker_sends_what_the_store_has_lost_and_nothing_else(here, tmp_path):
    one = Machine.of(here)
    one.work()
    home = Home(tmp_path / "home")
    for data in (FIRST, b"something else"):
        home.place(sha(data)).write_bytes(data)
    client = Client(["http://host.example"], one.device, clock=here.clock, transport=Passed(one.client))
    tell = Quiet()
    machine = SimpleNamespace(home=home, client=client, tell=tell)
    assert holding.give(machine) == [] and not tell.lines
    lose(here, FIRST)
    holding.Care().look(here)
    assert holding.give(machine) == [sha(FIRST)] and "lost a file" in tell.lines[0]
    assert here.artifacts.read(sha(FIRST)) == FIRST
    assert holding.give(machine) == []


def test_a_store_that_is_there_again_has_lost_nothing(here, tmp_path):
    """A folder that was not mounted for a while: the file counts as lost, and then no longer."""
    machine, care = Machine.of(here), holding.Care()
    machine.work()
    place = tmp_path / "store" / name_of(sha(FIRST))
    place.rename(tmp_path / "aside")
    assert care.look(here) == {sha(FIRST): "expert/0/step-20"}
    (tmp_path / "aside").rename(place)
    assert care.look(here) == {} and here.artifacts.size(sha(FIRST)) == len(FIRST)
    assert kinds(here)[-2:] == ["file_lost", "file_restored"]
