"""Documents that others can check: JSON with an Ed25519 signature (RFC 8032) beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, CorruptError

NEEDED = "signing needs the library cryptography; pip install 'atoll[credit]'"


def canonical(document: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: keys in order, no spaces, so that equal documents are equal bytes."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.encode()


def signed(document: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """A document with the public key and the signature of who holds the private one."""
    private = _private(key)
    return {
        "document": dict(document),
        "public_key": private.public_key().public_bytes_raw().hex(),
        "signature": private.sign(canonical(document)).hex(),
    }


def public_key(key: Path) -> str:
    """The public part of a private key, as signed documents have it."""
    public: str = _private(key).public_key().public_bytes_raw().hex()
    return public


def verified(envelope: Mapping[str, Any], public: str, name: str) -> dict[str, Any]:
    """The document of an envelope, if this key signed it; `name` is the file, for who must look."""
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - of the extra credit
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ImportError:
        raise ConfigError(NEEDED) from None
    if envelope.get("public_key") != public:
        raise CorruptError(f"{name} was signed with another key; give that key, or move the file away")
    document = envelope.get("document")
    try:
        signature = bytes.fromhex(envelope["signature"])
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, canonical(document or {}))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        raise CorruptError(f"{name} is not what was signed; restore it, or move it away") from None
    return dict(document or {})


def _private(path: Path) -> Any:
    """An Ed25519 key in a PEM file without password."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
    except ImportError:
        raise ConfigError(NEEDED) from None
    advice = f"make one with `openssl genpkey -algorithm ed25519 -out {path}`"
    if not path.is_file():
        raise ConfigError(f"there is no key {path}; {advice}")
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (TypeError, ValueError):
        raise ConfigError(f"{path} is not a PEM file with a private key without password; {advice}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is a key of another kind than Ed25519; {advice}")
    return key
