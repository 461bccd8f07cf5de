"""A chain of hashes held to its definition, and drand's form held to drand's arithmetic."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll.net.verification import beacon
from atoll.net.verification.beacon import BeaconError, BeaconSettings, ChainBeacon, DrandBeacon, Draw

SECRET = b"s" * 32
SETTINGS = ChainBeacon.publish(SECRET, genesis=100.0, period=2.0, rounds=3000)


def chain(now: float = 1e9) -> ChainBeacon:
    return ChainBeacon(SECRET, SETTINGS, lambda: now)


def test_values_are_the_chain_from_its_end():
    values = [SECRET]
    for _ in range(3000):
        values.append(hashlib.sha256(values[-1]).digest())
    assert values[-1].hex() == SETTINGS.anchor
    for number in (1, 2, 1023, 1024, 1025, 1976, 1977, 3000):
        assert chain().draw(number).bytes == values[3000 - number]


@given(st.integers(1, 3000))
def test_every_value_can_be_checked_and_no_other_passes(number):
    draw = chain().draw(number)
    beacon.check(SETTINGS, draw, number)
    with pytest.raises(BeaconError, match="in the place of"):
        beacon.check(SETTINGS, draw, number + 1)
    other = Draw(round=number, value=hashlib.sha256(b"chosen").hexdigest())
    with pytest.raises(BeaconError, match="anchor"):
        beacon.check(SETTINGS, other, number)


def test_a_value_comes_out_in_its_time_and_not_before():
    assert SETTINGS.time_of(1) == 100.0
    with pytest.raises(BeaconError, match="not out yet"):
        chain(now=103.9).draw(3)
    chain(now=104.0).draw(3)


@given(st.floats(0, 10_000))
def test_the_round_after_a_commitment_is_the_first_that_is_not_out(moment):
    number = SETTINGS.round_after(moment)
    assert SETTINGS.time_of(number) > moment
    assert number == 1 or SETTINGS.time_of(number - 1) <= moment


def test_there_is_no_round_beyond_the_last_and_no_other_secret():
    with pytest.raises(BeaconError, match="rounds 1 to 3000"):
        chain().draw(3001)
    with pytest.raises(BeaconError, match="rounds 1 to 3000"):
        chain().draw(0)
    with pytest.raises(BeaconError, match="not that of the published"):
        ChainBeacon(b"t" * 32, SETTINGS, lambda: 0.0)


DRAND = BeaconSettings(url="https://drand.example", anchor="ab" * 32, genesis=0.0, period=30.0)


def answer(number: int, signature: bytes = b"\x01" * 48) -> bytes:
    value = hashlib.sha256(signature).hexdigest()
    return json.dumps({"round": number, "randomness": value, "signature": signature.hex()}).encode()


def test_drand_is_asked_where_it_answers():
    asked = []

    def get(url: str) -> bytes:
        asked.append(url)
        return answer(12)

    draw = DrandBeacon(DRAND, get).draw(12)
    assert asked == [f"https://drand.example/{'ab' * 32}/public/12"]
    assert draw.bytes == hashlib.sha256(b"\x01" * 48).digest()
    beacon.check(DRAND, draw, 12)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        answer(11),
        json.dumps({"round": 12, "randomness": "00" * 32, "signature": "01"}).encode(),
        json.dumps({"round": 12, "randomness": "zz", "signature": "01"}).encode(),
        json.dumps({"round": "12", "randomness": "00" * 32, "signature": "01"}).encode(),
    ],
)
def test_answers_that_are_not_the_rounds_are_refused(body):
    with pytest.raises(BeaconError):
        DrandBeacon(DRAND, lambda url: body).draw(12)


def test_a_beacon_that_is_away_is_asked_again_later():
    def get(url: str) -> bytes:
        raise OSError("no route")

    with pytest.raises(BeaconError, match="asked again later"):
        DrandBeacon(DRAND, get).draw(12)


def test_a_network_says_when_its_rounds_are_and_files_may_answer_for_it(tmp_path):
    place = tmp_path / DRAND.anchor
    (place / "public").mkdir(parents=True)
    (place / "info").write_text(json.dumps({"period": 30, "genesis_time": 60, "hash": DRAND.anchor}))
    address = f"file://{tmp_path}/{DRAND.anchor}"
    settings = DrandBeacon.publish(address)
    assert (settings.genesis, settings.period, settings.anchor) == (60.0, 30.0, DRAND.anchor)
    now = 60.0 + 30 * 11
    source = DrandBeacon(settings, now=lambda: now)
    with pytest.raises(BeaconError, match="asked again later"):
        source.draw(12)
    (place / "public" / "12").write_bytes(answer(12))
    assert source.draw(12).round == 12
    (place / "public" / "12").unlink()
    assert source.draw(12).round == 12, "of several who need the same round one asks"
    with pytest.raises(BeaconError, match="not out yet"):
        source.draw(13)


@pytest.mark.parametrize("info", [b"", b"[]", b"{}", b'{"period": 0, "genesis_time": 1}',
                                  b'{"period": 3, "genesis_time": 1, "hash": "other"}'])  # fmt: skip
def test_what_is_no_network_is_said_in_one_line(info):
    with pytest.raises(BeaconError, match="give URL/HASH"):
        DrandBeacon.publish(f"https://drand.example/{DRAND.anchor}", lambda url: info)
    with pytest.raises(BeaconError, match="begins with"):
        DrandBeacon.publish("ftp://drand.example/hash")


def test_rounds_of_years_are_followed_to_the_nearest_that_is_known(monkeypatch):
    """In any order, the same answers as by following each to the end; every hash is taken about once."""
    taken = []
    hashed = beacon._hashed

    def counted(value, times=1):
        taken.append(times)
        return hashed(value, times)

    draws = [chain().draw(number) for number in (5, 2000, 2990, 1000, 3000, 2990)]
    monkeypatch.setattr(beacon, "_hashed", counted)
    monkeypatch.setattr(beacon, "_followed", {})
    for draw in draws:
        beacon.check(SETTINGS, draw, draw.round)
    assert sum(taken) == 5 + 1995 + 990 + 995 + 10 + 0
    with pytest.raises(BeaconError, match="anchor"):
        beacon.check(SETTINGS, Draw(round=2000, value="0" * 64), 2000)


@pytest.mark.parametrize("rounds", [1, 1023, 1024, 1025, 3000])
def test_a_chain_that_was_published_is_open_at_once(monkeypatch, rounds):
    """Millions of hashes are a coordinator's first seconds, and were taken twice."""
    settings = ChainBeacon.publish(b"another".ljust(32), genesis=0.0, rounds=rounds)
    monkeypatch.setattr(beacon, "_hashed", None)
    assert ChainBeacon(b"another".ljust(32), settings, lambda: 1e9).settings.anchor == settings.anchor
    monkeypatch.undo()
    value = b"another".ljust(32)
    for _ in range(rounds):
        value = hashlib.sha256(value).digest()
    assert settings.anchor == value.hex()


def test_a_drand_beacon_needs_an_address():
    with pytest.raises(BeaconError, match="address"):
        DrandBeacon(SETTINGS, lambda url: b"")


def test_a_record_of_another_form_is_none():
    with pytest.raises(ValidationError):
        Draw(round=1, value="ABC")


def test_a_seed_follows_from_round_and_recipe():
    draw = chain().draw(5)
    assert beacon.seed_of(draw, "recipe a") == beacon.seed_of(draw, "recipe a")
    assert len({beacon.seed_of(chain().draw(number), "recipe a") for number in range(1, 50)}) == 49
    assert beacon.seed_of(draw, "recipe a") != beacon.seed_of(draw, "recipe b")
    assert 0 <= beacon.seed_of(draw, "recipe a") < 2**31
