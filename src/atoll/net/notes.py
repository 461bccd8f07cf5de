"""Signed notes and checkpoints of a log, as C2SP defines them: a text, and under it who signed it.

https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint, https://c2sp.org/tlog-cosignature.
"""

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from atoll.errors import CorruptError
from atoll.net.tree import SIZE

ED25519, COSIGNATURE = 0x01, 0x04
"""Kinds of signatures: of the log itself, and of a witness, with a time."""
LONGEST = 1 << 16
"""Bytes of a note that are read."""


@dataclass(frozen=True)
class Checkpoint:
    """How many entries a log has, and the root of their tree."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def checkpoint_of(text: str) -> Checkpoint:
    """The checkpoint that the text of a note says."""
    lines = text.split("\n")
    if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
        raise CorruptError("a checkpoint of the log has other than an origin, a size and a root")
    origin, size, encoded = lines[:3]
    if not re.fullmatch(r"0|[1-9][0-9]{0,17}", size):
        raise CorruptError(f"a checkpoint of the log says {size!r:.40} entries, which is no number")
    root = _decoded(encoded)
    if len(root) != SIZE:
        raise CorruptError("a checkpoint of the log has a root that is no hash")
    return Checkpoint(origin, int(size), root)


def public_bytes(public: str) -> bytes:
    """A public key from its hexadecimal form."""
    if not re.fullmatch(r"[0-9a-f]{64}", public):
        raise CorruptError(f"{public!r:.70} is no public key; give its 64 hexadecimal digits")
    return bytes.fromhex(public)


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public part of a key, in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def key_id(name: str, kind: int, public: bytes) -> bytes:
    """Four bytes that tell keys of one name apart; they prove nothing."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def verifier_key(name: str, public: str, kind: int = ED25519) -> str:
    """The form in which tools for such logs take a public key."""
    raw = public_bytes(public)
    return f"{name}+{key_id(name, kind, raw).hex()}+{base64.b64encode(bytes([kind]) + raw).decode()}"


def signed(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> bytes:
    """A checkpoint with the signature of its log."""
    text, public = checkpoint.text, key.public_key().public_bytes_raw()
    return f"{text}\n{_line(checkpoint.origin, ED25519, public, key.sign(text.encode()))}".encode()


def cosigned(note: bytes, name: str, key: Ed25519PrivateKey, at: int) -> bytes:
    """A note with one more signature under it: of a witness, who saw it at a time (Unix seconds)."""
    text, public = _parts(note)[0], key.public_key().public_bytes_raw()
    signature = struct.pack(">Q", at) + key.sign(_cosigned_message(text, at))
    return note + _line(name, COSIGNATURE, public, signature).encode()


def opened(note: bytes, public: str) -> Checkpoint:
    """The checkpoint of a note, if the log's key signed it."""
    text, lines = _parts(note)
    checkpoint, raw = checkpoint_of(text), public_bytes(public)
    marks = key_id(checkpoint.origin, ED25519, raw)
    for name, signature in lines:
        if name == checkpoint.origin and signature[:4] == marks:
            if _holds(raw, signature[4:], text.encode()):
                return checkpoint
            raise CorruptError("the checkpoint of the log has a signature that does not fit it")
    raise CorruptError("the checkpoint of the log is not signed with the key of this log")


def witnesses(note: bytes, known: Mapping[str, str]) -> dict[str, int]:
    """Which known witnesses (name: public key) cosigned a note, and when; an invalid one is refused."""
    text, lines = _parts(note)
    times = {}
    for name, signature in lines:
        raw = public_bytes(known[name]) if name in known else b""
        if raw and signature[:4] == key_id(name, COSIGNATURE, raw):
            at = struct.unpack(">Q", signature[4:12])[0] if len(signature) == 76 else 0
            if not _holds(raw, signature[12:], _cosigned_message(text, at)):
                raise CorruptError(f"the cosignature of {name} does not fit the checkpoint")
            times[name] = at
    return times


def _cosigned_message(text: str, at: int) -> bytes:
    return f"cosignature/v1\ntime {at}\n{text}".encode()


def _line(name: str, kind: int, public: bytes, signature: bytes) -> str:
    return f"\u2014 {name} {base64.b64encode(key_id(name, kind, public) + signature).decode()}\n"


def _parts(note: bytes) -> tuple[str, list[tuple[str, bytes]]]:
    """The text of a note, and names and bytes of its signatures."""
    if len(note) > LONGEST:
        raise CorruptError("a checkpoint of the log is longer than any that is made")
    try:
        content = note.decode()
    except UnicodeDecodeError:
        raise CorruptError("a checkpoint of the log is no text") from None
    text, separator, rest = content.rpartition("\n\n")
    if not separator or not rest.endswith("\n") or any(ord(char) < 32 and char != "\n" for char in content):
        raise CorruptError("a checkpoint of the log is cut off or damaged")
    lines = []
    for line in rest[:-1].split("\n"):
        match = re.fullmatch("\u2014 ([^ +]+) ([A-Za-z0-9+/=]+)", line)
        signature = _decoded(match[2]) if match else b""
        if not match or len(signature) < 5:
            raise CorruptError("a checkpoint of the log has a line that is no signature")
        lines.append((match[1], signature))
    return text + "\n", lines


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CorruptError("a checkpoint of the log holds something that is not base64") from None


def _holds(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
