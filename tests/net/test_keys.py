"""Keys, words and delegations."""

import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import ConfigError
from atoll.net import keys
from atoll.net.keys import KeyProblem


def test_words_hold_the_key_and_a_slip_is_noticed():
    phrase = keys.new_phrase()
    assert len(phrase.split()) == 24
    key = keys.account_key(phrase)
    assert keys.public_hex(keys.account_key(f"  {phrase.upper()} ")) == keys.public_hex(key)
    words = phrase.split()
    for wrong in ("", "abandon", " ".join(words[:23]), " ".join([*words[:23], "atoll"])):
        with pytest.raises(ConfigError, match="24 words"):
            keys.account_key(wrong)


def test_the_words_are_those_of_everybody():
    """BIP 39's own vector for 32 bytes of zeroes, so that any wallet can restore a key."""
    phrase = "abandon " * 23 + "art"
    assert keys.account_key(phrase).private_bytes_raw() == bytes(32)


def test_a_delegation_is_good_until_it_expires_and_for_nothing_else():
    account, device = Ed25519PrivateKey.generate(), keys.public_hex(Ed25519PrivateKey.generate())
    good = keys.delegate(account, device, 2000.7)
    keys.check_delegation(good, 1999)
    other = keys.public_hex(Ed25519PrivateKey.generate())
    for change in ({"device": other}, {"account": other}, {"expires": 3000.0}, {"signature": "00" * 64}):
        with pytest.raises(KeyProblem, match="not signed"):
            keys.check_delegation(good.model_copy(update=change), 1999)
    with pytest.raises(KeyProblem, match="expired"):
        keys.check_delegation(good, 2000)
    with pytest.raises(KeyProblem, match="years"):
        keys.check_delegation(keys.delegate(account, device, 1e9), 0)
    with pytest.raises(KeyProblem, match="must not"):
        keys.check_delegation(keys.delegate(account, keys.public_hex(account), 2000), 0)
    for digits in ("", "00", "zz" * 32):
        with pytest.raises(KeyProblem, match="32 bytes"):
            keys.identity(digits)


def test_a_key_at_rest_is_its_owners_alone(tmp_path):
    path = tmp_path / "keys" / "device"
    key = keys.read_or_make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.public_hex(keys.read_or_make(path)) == keys.public_hex(key)
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match="no key"):
        keys.read_or_make(path)
