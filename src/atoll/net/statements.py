"""Statements of the log: facts of a run in in-toto's shape, signed as DSSE envelopes.

The signature is over the bytes as they are, so that nobody has to agree on how JSON is written.
https://github.com/secure-systems-lab/dsse, https://github.com/in-toto/attestation.
"""

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.errors import CorruptError
from atoll.net.notes import public_bytes, public_hex

PAYLOAD = "application/vnd.in-toto+json"
SHAPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
LARGEST = 60_000
"""Bytes of an envelope: an entry of the log has at most 65,535."""
Model = TypeVar("Model", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Subject(_Part):
    name: Literal["run"]
    digest: dict[Literal["sha256"], str] = Field(min_length=1, max_length=1)


class _Predicate(_Part):
    at: float = Field(ge=0, allow_inf_nan=False)
    facts: dict[str, Any]


class _Statement(_Part):
    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[_Subject] = Field(strict=False)
    predicateType: str = Field(pattern=r"^urn:atoll:[a-z]{1,32}:1$")  # noqa: N815 - in-toto's name
    predicate: _Predicate


class _Signature(_Part):
    keyid: str = Field(pattern=r"^[0-9a-f]{64}$")
    sig: str = Field(max_length=100)


class _Envelope(_Part):
    payload: str = Field(max_length=LARGEST * 2)
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - DSSE's name
    signatures: tuple[_Signature, ...] = Field(min_length=1, max_length=8, strict=False)


@dataclass(frozen=True)
class Statement:
    """One fact of a run: what kind it is, when it was stated (Unix seconds), and who signed it."""

    kind: str
    run: str
    at: float
    facts: Mapping[str, Any]
    signers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signer:
    """Who states facts of one run: a key, and the digest of the run's manifest."""

    key: Ed25519PrivateKey
    run: str

    @property
    def public(self) -> str:
        """The public key, in hexadecimal digits."""
        return public_hex(self.key)

    def envelope(self, kind: str, facts: Mapping[str, Any], at: float) -> bytes:
        """A signed statement, as bytes that are logged, sent or kept as they are."""
        payload = compact(
            {
                "_type": SHAPE,
                "subject": [{"name": "run", "digest": {"sha256": self.run}}],
                "predicateType": f"urn:atoll:{kind}:1",
                "predicate": {"at": at, "facts": dict(facts)},
            }
        )
        signature = self.key.sign(encoded(payload))
        return compact(
            {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD,
                "signatures": [{"keyid": self.public, "sig": base64.b64encode(signature).decode()}],
            }
        )


def compact(value: Any) -> bytes:
    """JSON without spaces, keys in order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encoded(payload: bytes, kind: str = PAYLOAD) -> bytes:
    """DSSE's pre-authentication encoding: what is signed, with its type and lengths."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def opened(envelope: bytes, keys: Collection[str] | None = None) -> Statement:
    """The statement of an envelope whose every signature holds; one must be of `keys`, if they are given.

    Raises `CorruptError` for anything else: envelopes come from strangers.
    """
    raw = _checked(_Envelope, envelope, "an envelope")
    payload = _decoded(raw.payload)
    for signature in raw.signatures:
        _verify(signature.keyid, _decoded(signature.sig), encoded(payload))
    signers = tuple(signature.keyid for signature in raw.signatures)
    if keys is not None and not set(signers) & set(keys):
        raise CorruptError(f"a statement is signed by {signers[0]:.12}…, who has no say in it")
    content = _checked(_Statement, payload, "a statement")
    return Statement(
        kind=content.predicateType.split(":")[2],
        run=content.subject[0].digest["sha256"],
        at=content.predicate.at,
        facts=content.predicate.facts,
        signers=signers,
    )


def _checked(model: type[Model], data: bytes, what: str) -> Model:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptError(f"{what} is damaged ({place}: {first['msg']:.120})") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CorruptError("an envelope holds something that is not base64") from None


def _verify(public: str, signature: bytes, message: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public_bytes(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise CorruptError(f"the signature of {public:.12}… does not fit its statement") from None
