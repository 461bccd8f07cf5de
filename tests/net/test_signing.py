"""Signed requests: every covered part, changed, is noticed; times and nonces are held to."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from atoll.net import signing
from atoll.net.signing import LIFETIME, SKEW, Request, Unsigned

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
KNOWN = {"one": KEY.public_key(), "two": OTHER.public_key()}
URL, BODY, NOW = "http://host.example:8000/v1/leases?a=1&b=2", b'{"x": 1}', 1.8e9


def signed(url=URL, method="POST", body=BODY, key=KEY, key_id="one", now=NOW):
    request = Request(method, url)
    request.headers = signing.sign(request, body, key, key_id, now)
    return request


def verified(request, body=BODY, now=NOW):
    return signing.verify(request, body, KNOWN.get, now)


def test_a_signed_request_is_its_signers():
    answer = verified(signed())
    assert answer.key_id == "one" and answer.expires == NOW + LIFETIME
    assert verified(signed()).nonce != answer.nonce
    assert verified(signed(body=b"", method="GET"), b"").key_id == "one"


def test_a_proxy_may_end_tls():
    request = signed("https://host.example/v1/leases")
    assert verified(Request("POST", "http://host.example/v1/leases", request.headers)).key_id == "one"


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"url": URL.replace("host.example", "other.example")},
        {"url": URL.replace("8000", "8001")},
        {"url": URL.replace("leases", "accounts")},
        {"url": URL.replace("a=1", "a=2")},
        {"url": URL.split("?")[0]},
    ],
    ids=str,
)
def test_another_request_with_the_same_signature_is_refused(change):
    request = signed()
    changed = Request(change.get("method", "POST"), change.get("url", URL), request.headers)
    with pytest.raises(Unsigned, match="does not fit"):
        verified(changed)


def test_another_body_is_refused():
    for body in (b"", b'{"x": 2}', BODY + b" "):
        with pytest.raises(Unsigned):
            verified(signed(), body)


@pytest.mark.parametrize(
    "part", ["created", "expires", "nonce", "keyid", "tag", "alg", "@path", "content-digest"]
)
def test_a_signature_with_another_parameter_is_refused(part):
    request = signed()
    name = next(name for name in request.headers if name.lower() == "signature-input")
    text = request.headers[name]
    swaps = {
        "created": (str(int(NOW)), str(int(NOW) + 1)),
        "expires": (str(int(NOW) + LIFETIME), str(int(NOW) + LIFETIME + 1)),
        "nonce": ('nonce="', 'nonce="x'),
        "keyid": ('"one"', '"two"'),
        "tag": (';tag="atoll"', ""),
        "alg": (';alg="ed25519"', ""),
        "@path": ('"@path" ', ""),
        "content-digest": (' "content-digest"', ""),
    }
    old, new = swaps[part]
    assert old in text
    request.headers[name] = text.replace(old, new, 1)
    with pytest.raises(Unsigned):
        verified(request)


def test_less_than_everything_is_not_enough(monkeypatch):
    """A signature that holds, over fewer parts than are asked for."""
    monkeypatch.setattr(signing, "COVERED", ("@method", "@authority", "@path", "content-digest"))
    request = signed()
    monkeypatch.undo()
    with pytest.raises(Unsigned, match="does not fit"):
        verified(request)


def test_strangers_and_the_unsigned():
    with pytest.raises(Unsigned, match="not signed"):
        verified(Request("POST", URL))
    with pytest.raises(Unsigned):
        verified(signed(key_id="nobody"))
    with pytest.raises(Unsigned):
        verified(signed(key=OTHER))
    long = Request("POST", URL, {**signed().headers, "Signature-Input": "a" * 9000})
    with pytest.raises(Unsigned, match="longer"):
        verified(long)


def test_time():
    request = signed()
    verified(request, now=NOW + LIFETIME - 1)
    verified(signed(now=NOW + SKEW))
    for moment in (NOW - SKEW - 1, NOW + LIFETIME, NOW + 7200, NOW - 7200):
        with pytest.raises(Unsigned) as caught:
            verified(request, now=moment)
        assert caught.value.code == "clock"


def test_nobody_gets_a_longer_life(monkeypatch):
    monkeypatch.setattr(signing, "LIFETIME", signing.LONGEST + 1)
    with pytest.raises(Unsigned, match="at most"):
        verified(signed())


@given(st.text(max_size=80), st.text(max_size=80))
def test_nonsense_in_the_headers_is_a_refusal(left, right):
    with pytest.raises(Unsigned):
        verified(Request("POST", URL, {"Signature": left, "Signature-Input": right}))
