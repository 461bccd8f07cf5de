"""Rounds that the network `quicknet` has published, and what is none of its."""

import hashlib
import json

import pytest

from atoll.net.verification import beacon, drand
from atoll.net.verification.beacon import BeaconError, DrandBeacon, Draw

ANCHOR = "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971"
KEY = (
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
INFO = {
    "public_key": KEY,
    "period": 3,
    "genesis_time": 1692803367,
    "hash": ANCHOR,
    "groupHash": "f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e",
    "schemeID": drand.SCHEME,
    "metadata": {"beaconID": "quicknet"},
}
ROUNDS = {
    1000: "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
    5928395: "a5d07c0071b4e386b3ae09206522253c68fefe8490ad59ecc44a7dd0d0745be9"
    "1da5779e2247a82403fbc0cb9a34cb61",
}
"""Signatures of rounds, as api.drand.sh gives them."""
needs_blst = pytest.mark.skipif(not drand.is_here(), reason="pip install 'atoll[drand]'")


def settings():
    return DrandBeacon.publish(f"https://drand.example/{ANCHOR}", lambda url: json.dumps(INFO).encode())


def draw(number, signature):
    value = hashlib.sha256(bytes.fromhex(signature)).hexdigest()
    return Draw(round=number, value=value, proof=signature)


def test_the_name_of_a_network_pins_its_key():
    assert drand.name_of(INFO) == ANCHOR
    assert settings().key == KEY
    other = {**INFO, "public_key": KEY.replace("83cf", "83ce")}
    with pytest.raises(BeaconError, match="not that of the network"):
        DrandBeacon.publish(f"https://drand.example/{ANCHOR}", lambda url: json.dumps(other).encode())


def test_a_network_of_another_scheme_has_no_key_that_we_could_use():
    assert drand.key_of({**INFO, "schemeID": "pedersen-bls-chained"}, ANCHOR) == ""


@needs_blst
@pytest.mark.parametrize("number", ROUNDS)
def test_published_rounds_are_signed(number):
    beacon.check(settings(), draw(number, ROUNDS[number]), number)


@needs_blst
@pytest.mark.parametrize(
    "signature",
    [
        ROUNDS[1000],
        "",
        "00" * 48,
        "c0" + "00" * 47,
        ROUNDS[5928395][:-1] + "2",
        "a" + ROUNDS[1000][1:],
    ],
    ids=["of another round", "none", "no point", "the point at infinity", "a bit more", "the negative"],
)
def test_what_the_network_has_not_signed_is_refused(signature):
    """Its hash is the value, as a coordinator that makes up rounds would write it."""
    with pytest.raises(BeaconError, match="is not signed by the beacon's network"):
        beacon.check(settings(), draw(5928395, signature), 5928395)
    assert not drand.is_signed("00" * 96, 1000, ROUNDS[1000])


def test_without_a_library_the_arithmetic_is_still_checked(monkeypatch):
    monkeypatch.setattr(drand, "is_here", lambda: False)
    beacon.check(settings(), draw(1, ROUNDS[1000]), 1)
    with pytest.raises(BeaconError, match="not the hash of its signature"):
        beacon.check(settings(), Draw(round=1, value="00" * 32, proof=ROUNDS[1000]), 1)
