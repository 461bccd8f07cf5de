"""The wire: wrong clocks, several addresses, files that break off, limits; against a real coordinator."""

from typing import Any

import httpx
import pytest

from atoll.errors import ConfigError, CorruptError, Interrupted
from atoll.net import keys
from atoll.net.client import MEASURED, Client, Rate, Refused, Throttle, checked
from atoll.net.home import Home
from atoll.net.protocol import Capabilities, Heartbeat
from atoll.net.units import described
from atoll.storage.clock import Clock
from tests.clocks import ManualClock
from tests.net.joined import Faulty, served
from tests.thorough import some


class Wrong(Clock):
    """Two hours ahead, and impatient."""

    def date(self):
        return super().date() + 7200

    def sleep(self, seconds):
        super().sleep(min(seconds, 0.01))


@pytest.fixture
def place(run_of_units):
    with served(run_of_units) as (hosted, url):
        yield hosted, url


def client_of(url, folder, **given):
    home = Home(folder)
    client = Client([url] if isinstance(url, str) else url, home.key(), **given)
    client.join(home.delegation(client.now())[0])
    return client


def test_a_clock_that_is_two_hours_wrong_is_put_right_and_noted(place, tmp_path):
    events = []
    client = client_of(place[1], tmp_path, clock=Wrong(), event=lambda kind, **facts: events.append(kind))
    assert abs(client.offset + 7200) < 60
    assert client.lease(Capabilities(), "a" * 8).kind == "lease"
    assert events == ["clock_wrong"]
    client.close()


def test_an_address_that_does_not_answer_is_left_for_the_next(place, tmp_path):
    client = client_of(["http://127.0.0.1:9", place[1]], tmp_path, clock=Wrong())
    assert client.addresses[0] == place[1]
    client.close()


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_files_arrive_whole_through_a_line_that_breaks(place, tmp_path, seed, monkeypatch):
    monkeypatch.setattr("atoll.net.client.PIECE", 1000)
    (tmp_path / "file").write_bytes(bytes(range(256)) * 40 + bytes([seed]))
    file = described(tmp_path / "file", tmp_path)
    kinds = ("before", "after", "half", "503", "cut", "damaged")
    client = client_of(place[1], tmp_path / "home", clock=Wrong(), transport=Faulty(seed, 0.2, kinds))
    client.upload(tmp_path / "file", file)
    client.download(file, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()
    assert place[0].coordinator.artifacts.size(file.sha256) == file.size
    client.upload(tmp_path / "file", file)  # it is there: nothing is sent
    client.close()


def test_an_empty_file_is_a_file(place, tmp_path):
    (tmp_path / "file").touch()
    file = described(tmp_path / "file", tmp_path)
    client = client_of(place[1], tmp_path / "home")
    client.upload(tmp_path / "file", file)
    assert place[0].coordinator.artifacts.size(file.sha256) == 0
    client.close()


def test_what_is_sent_with_another_digest_is_not_taken(place, tmp_path):
    (tmp_path / "file").write_bytes(b"good")
    file = described(tmp_path / "file", tmp_path)
    (tmp_path / "file").write_bytes(b"evil")
    client = client_of(place[1], tmp_path / "home", clock=Wrong())
    sent = []

    def event(kind, **facts):
        sent.append(kind)
        if len(sent) > 3:
            client.close()

    client.event = event
    with pytest.raises((CorruptError, RuntimeError, Refused)):
        client.upload(tmp_path / "file", file)
    assert place[0].coordinator.artifacts.size(file.sha256) is None
    client.close()


def test_refusals_are_final_and_have_a_reason(place, tmp_path):
    client = client_of(place[1], tmp_path)
    with pytest.raises(Refused, match="no such lease"):
        client.heartbeat("nothing", Heartbeat(fence=1))
    client.close()
    with pytest.raises(ConfigError, match="is no address"):
        Client(["run.example.org"], keys.read_or_make(tmp_path / "key"))


def test_a_coordinator_that_stays_away_is_given_up(tmp_path):
    clock = ManualClock()
    clock.date = lambda: 1e9
    client = Client(["http://127.0.0.1:9"], keys.read_or_make(tmp_path / "key"), clock=clock)
    with pytest.raises(Interrupted, match="does not answer"):
        client.manifest()
    assert clock.time > 5
    client.close()


def test_asked_to_stop_nobody_waits_for_a_coordinator_that_is_away(tmp_path):
    clock = ManualClock()
    clock.date = lambda: 1e9
    key = keys.read_or_make(tmp_path / "key")
    client = Client(["http://127.0.0.1:9"], key, clock=clock, stopping=lambda: True)
    with pytest.raises(Interrupted, match="asked to stop while the coordinator is away"):
        client.lease(Capabilities(), "a" * 8)
    assert clock.naps == []
    client.close()


def test_a_manifest_of_somebody_else_is_not_worked_for(place, tmp_path):
    client = client_of(place[1], tmp_path)
    manifest, signed = client.manifest()
    assert manifest.name == "tiny"
    for change in ({"manifest": signed.manifest.replace("tiny", "tinz")}, {"signature": "00" * 64}):
        with pytest.raises(CorruptError, match="not signed"):
            checked(signed.model_copy(update=change))
    other = keys.read_or_make(tmp_path / "other")
    forged = {"key": keys.public_hex(other), "signature": other.sign(signed.manifest.encode()).hex()}
    with pytest.raises(CorruptError, match="another coordinator"):
        checked(signed.model_copy(update=forged))
    client.close()


def test_megabits_are_counted_over_all_files():
    clock = ManualClock()
    throttle = Throttle(8.0, clock)  # a megabyte a second
    throttle.spend(1_000_000)
    throttle.spend(500_000)
    assert clock.time == pytest.approx(1.5)
    Throttle(0.0, clock).spend(10**12)
    assert clock.time == pytest.approx(1.5)


def test_a_proxy_of_the_environment_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = Client(["http://run.example.org"], keys.read_or_make(tmp_path / "key"))
    transport: Any = client._http._transport_for_url(httpx.URL("http://run.example.org/"))
    assert "127.0.0.1" in repr(transport._pool._proxy_url)
    client.close()


def test_how_fast_a_line_is_is_learnt_from_large_pieces():
    rate = Rate()
    rate.note(MEASURED - 1, 1.0)
    rate.note(MEASURED, 0.0)
    assert rate.mbit == 0, "nothing is known yet"
    rate.note(10**7, 8.0)
    assert rate.mbit == pytest.approx(10)
    rate.note(10**7, 2.0)
    assert rate.mbit == pytest.approx(20), "a third of the way to 40"
