"""Who is who: an account's key, made of 24 words that one can write down, and keys of devices acting for it.

The account's key signs which device may act until when, and is not needed again until then. A device's key
signs requests. Both are Ed25519; an identity is the hash of a public key.
"""

import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from mnemonic import Mnemonic

from atoll.errors import AtollError, ConfigError
from atoll.net.protocol import Delegation
from atoll.runs.files import replacing

YEAR = 365 * 86400.0
LONGEST = 2 * YEAR
"""Seconds for which a device can be told to act at most."""
_WORDS = Mnemonic("english")


class KeyProblem(AtollError):  # noqa: N818 - what is wrong with a key
    """A key or a delegation is not what it should be."""


def new_phrase() -> str:
    """24 words that hold a new account's key."""
    return _WORDS.to_mnemonic(secrets.token_bytes(32))


def account_key(phrase: str) -> Ed25519PrivateKey:
    """The key that 24 words hold; a word that is mistyped is noticed by the checksum."""
    words = " ".join(phrase.lower().split())
    if len(words.split()) != 24 or not _WORDS.check(words):
        raise ConfigError("this is no recovery phrase; give the 24 words as they were shown, in order")
    return Ed25519PrivateKey.from_private_bytes(bytes(_WORDS.to_entropy(words)))


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key, 32 bytes in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def public_key(digits: str) -> Ed25519PublicKey:
    """A public key that a stranger has written."""
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits))
    except ValueError:
        raise KeyProblem("a public key has 32 bytes, as 64 hexadecimal digits") from None


def identity(public: str) -> str:
    """What somebody with this public key is called."""
    public_key(public)
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()


def delegation_bytes(device: str, expires: float) -> bytes:
    """What an account signs."""
    return b"atoll delegation v1\n" + bytes.fromhex(device) + b"\n%d" % int(expires)


def delegate(account: Ed25519PrivateKey, device: str, expires: float) -> Delegation:
    """Let a device act for an account until then."""
    whole = float(int(expires))
    signature = account.sign(delegation_bytes(device, whole)).hex()
    return Delegation(account=public_hex(account), device=device, expires=whole, signature=signature)


def check_delegation(delegation: Delegation, now: float) -> None:
    """Whether an account has said so, and still says it."""
    account = public_key(delegation.account)
    public_key(delegation.device)
    if delegation.account == delegation.device:
        raise KeyProblem("an account's key must not be a device's; make another for the device")
    try:
        signed = delegation_bytes(delegation.device, delegation.expires)
        account.verify(bytes.fromhex(delegation.signature), signed)
    except (InvalidSignature, ValueError):
        raise KeyProblem("the account has not signed this delegation") from None
    if delegation.expires <= now:
        raise KeyProblem("the delegation has expired; sign a new one with the account's key")
    if delegation.expires > now + LONGEST:
        raise KeyProblem(f"a delegation lasts at most {LONGEST / YEAR:.0f} years")


def read_or_make(path: Path) -> Ed25519PrivateKey:
    """The key in a file that only its owner may read; a new one where there is none."""
    if not path.exists():
        with replacing(path) as beside:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(Ed25519PrivateKey.generate().private_bytes_raw().hex() + "\n")
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except ValueError:
        raise ConfigError(f"{path} holds no key; restore it, or move it away for a new one") from None
