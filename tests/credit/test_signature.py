import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from hypothesis import given
from hypothesis import strategies as st

from atoll.credit import signature
from atoll.errors import ConfigError, CorruptError


def pem(path, key=None):
    private = key or ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return path


def test_what_was_signed_is_read_back_and_anybody_can_check_it(tmp_path):
    key = pem(tmp_path / "key.pem")
    envelope = json.loads(json.dumps(signature.signed({"b": 1.5, "a": ["x"]}, key)))
    public = signature.public_key(key)
    assert signature.verified(envelope, public, "a file") == {"b": 1.5, "a": ["x"]}
    # by the library alone, as somebody else would
    theirs = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(envelope["public_key"]))
    theirs.verify(bytes.fromhex(envelope["signature"]), b'{"a":["x"],"b":1.5}')


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e | {"document": {"pay": 2}},
        lambda e: e | {"signature": "00" * 64},
        lambda e: e | {"signature": "not hex"},
        lambda e: e | {"document": None},
        lambda e: {key: e[key] for key in ("document", "public_key")},
    ],
)
def test_what_was_changed_is_refused(tmp_path, change):
    key = pem(tmp_path / "key.pem")
    envelope = signature.signed({"pay": 1}, key)
    with pytest.raises(CorruptError, match="epoch is not what was signed"):
        signature.verified(change(envelope), signature.public_key(key), "epoch")


def test_another_key_is_refused(tmp_path):
    key = pem(tmp_path / "key.pem")
    other = pem(tmp_path / "other.pem", ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(CorruptError, match="signed with another key"):
        signature.verified(signature.signed({}, key), signature.public_key(other), "epoch")


@pytest.mark.parametrize("kind", ["missing", "text", "of another kind"])
def test_a_key_that_is_none_is_told_in_one_line(tmp_path, kind):
    path = tmp_path / "key.pem"
    if kind == "text":
        path.write_text("hello")
    elif kind != "missing":
        pem(path, x25519.X25519PrivateKey.generate())
    with pytest.raises(ConfigError, match="openssl genpkey -algorithm ed25519") as refused:
        signature.public_key(path)
    assert "\n" not in str(refused.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), plain))
def test_the_bytes_survive_a_file_and_the_order_of_keys(document):
    again = json.loads(json.dumps(dict(reversed(document.items()))))
    assert signature.canonical(again) == signature.canonical(document)
