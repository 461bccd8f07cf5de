"""Statements against DSSE's published vector, and what strangers may send."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import CorruptError
from atoll.net import statements
from atoll.net.statements import Signer, opened

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
RUN = "ab" * 32
SIGNER = Signer(KEY, RUN)
ENVELOPE = SIGNER.envelope("lease", {"unit": "expert 3", "price": 5}, 1000.5)


def test_the_encoding_is_that_of_the_specification():
    """The example of DSSE's protocol.md."""
    assert statements.encoded(b"hello world", "http://example.com/HelloWorld") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_a_statement_says_what_was_stated():
    statement = opened(ENVELOPE, {SIGNER.public})
    assert (statement.kind, statement.run, statement.at) == ("lease", RUN, 1000.5)
    assert statement.facts == {"unit": "expert 3", "price": 5}
    assert statement.signers == (SIGNER.public,)


def test_the_same_fact_is_the_same_bytes():
    assert SIGNER.envelope("lease", {"price": 5, "unit": "expert 3"}, 1000.5) == ENVELOPE


def test_only_who_has_a_say_is_heard():
    with pytest.raises(CorruptError, match="who has no say"):
        opened(ENVELOPE, {Signer(OTHER, RUN).public})


@pytest.mark.parametrize("place", range(0, len(ENVELOPE), 5))
def test_no_byte_can_be_changed(place):
    changed = ENVELOPE[:place] + bytes([ENVELOPE[place] ^ 1]) + ENVELOPE[place + 1 :]
    with pytest.raises(CorruptError):
        opened(changed, {SIGNER.public})


def test_a_signature_of_another_key_under_our_name_is_refused():
    raw = json.loads(ENVELOPE)
    forged = json.loads(Signer(OTHER, RUN).envelope("lease", {"unit": "expert 3", "price": 9}, 1000.5))
    raw["payload"] = forged["payload"]
    raw["signatures"][0]["sig"] = forged["signatures"][0]["sig"]
    with pytest.raises(CorruptError, match="does not fit"):
        opened(json.dumps(raw).encode())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"[]", "statement is damaged"),
        (b"{}", "statement is damaged"),
        (b'{"_type": "https://in-toto.io/Statement/v1", "subject": []}', "statement is damaged"),
        (b"[" * 50_000, "statement is damaged"),
        (b"\xff", "statement is damaged"),
    ],
)  # fmt: skip
def test_what_is_signed_but_no_statement_is_refused(payload, reason):
    sig = base64.b64encode(KEY.sign(statements.encoded(payload))).decode()
    raw = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": statements.PAYLOAD,
        "signatures": [{"keyid": SIGNER.public, "sig": sig}],
    }
    with pytest.raises(CorruptError, match=reason):
        opened(json.dumps(raw).encode())


@given(st.binary(max_size=200))
def test_noise_is_refused_in_words(raw):
    with pytest.raises(CorruptError):
        opened(raw)
