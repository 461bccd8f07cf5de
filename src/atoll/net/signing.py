"""Requests signed by RFC 9421: over method, target and content, for a short while, each at most once.

The scheme is not covered, since a reverse proxy may end TLS; the authority is, so that a request to one
coordinator is worth nothing at another.
"""

import datetime
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    algorithms,
)
from http_message_signatures.exceptions import HTTPMessageSignaturesException

from atoll.errors import AtollError

COVERED = ("@method", "@authority", "@path", "@query", "content-digest")
LIFETIME = 120
"""Seconds for which a request is good."""
LONGEST = 300
"""Seconds for which one may ask it to be; a nonce is remembered until its request is good no more."""
SKEW = 120
"""Seconds by which the signer's clock may be ahead."""
TAG = "atoll"
HEADERS = 8192
"""Bytes of the two headers at most."""


class Unsigned(AtollError):  # noqa: N818 - a state
    """A request is not signed by whom it says, or not now; the code says which."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class Signed:
    """Whose a request is."""

    key_id: str
    nonce: str
    expires: float
    """Until when it is good, and its nonce remembered."""


@dataclass
class Request:
    """What of a request is signed."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)


Find = Callable[[str], Ed25519PublicKey | None]


class _Keys(HTTPSignatureKeyResolver):
    def __init__(self, find: Find | None = None, own: Ed25519PrivateKey | None = None) -> None:
        self._find, self._own = find, own

    def resolve_public_key(self, key_id: str) -> Any:
        return self._find(key_id) if self._find is not None else None

    def resolve_private_key(self, key_id: str) -> Any:
        return self._own


class _Verifier(HTTPMessageVerifier):
    """Times are ours to judge: by our own clock, and with an answer that tells it."""

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        """Left to `_times`, which knows what time it is."""


def sign(request: Request, body: bytes, key: Ed25519PrivateKey, key_id: str, now: float) -> dict[str, str]:
    """The headers that make a request a signed one; `now` is the coordinator's clock as far as one knows."""
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=_Keys(own=key))
    message = Request(request.method, request.url, {})
    signer.sign(
        message,
        key_id=key_id,
        created=_moment(now),
        expires=_moment(now + LIFETIME),
        nonce=secrets.token_urlsafe(18),
        label="atoll",
        tag=TAG,
        include_alg=True,
        covered_component_ids=COVERED,
        body=body,
    )
    return message.headers


def verify(request: Request, body: bytes, find: Find, now: float) -> Signed:
    """Whose request this is; `find` knows public keys by their ids."""
    headers = _lower(request.headers)
    if "signature" not in headers or "signature-input" not in headers:
        raise Unsigned("unsigned", "the request is not signed; sign it by RFC 9421 with a device's key")
    if len(headers["signature"]) + len(headers["signature-input"]) > HEADERS:
        raise Unsigned("signature", "the signature is longer than a signature")
    verifier = _Verifier(signature_algorithm=algorithms.ED25519, key_resolver=_Keys(find=find))
    message = Request(request.method, request.url, headers)
    try:
        results = verifier.verify(
            message, max_age=None, expect_tag=TAG, require_components=COVERED, body=body
        )
    except (InvalidSignature, HTTPMessageSignaturesException, ValueError, TypeError, KeyError) as error:
        if isinstance(error.__cause__, AtollError):  # the one who knows keys has a reason of its own
            raise error.__cause__ from None
        raise Unsigned("signature", "the signature does not fit the request") from None
    if len(results) != 1:
        raise Unsigned("signature", "a request has one signature")
    return _times(results[0].parameters, now)


def _times(parameters: Mapping[str, Any], now: float) -> Signed:
    created, expires, nonce = (parameters.get(name) for name in ("created", "expires", "nonce"))
    if not isinstance(created, int) or not isinstance(expires, int) or not isinstance(nonce, str):
        raise Unsigned("signature", "a signature says when it was made, until when it is good, and a nonce")
    if not 16 <= len(nonce) <= 64:
        raise Unsigned("signature", "a nonce has 16 to 64 characters")
    if not 0 < expires - created <= LONGEST:
        raise Unsigned("signature", f"a request is good for at most {LONGEST} seconds")
    if created > now + SKEW:
        raise Unsigned("clock", "the request was signed in the future; your clock is wrong, go by ours")
    if now >= expires:
        raise Unsigned("clock", "the request has expired; sign it anew, by our clock if yours is wrong")
    return Signed(str(parameters["keyid"]), nonce, float(expires))


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), tz=datetime.UTC)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
