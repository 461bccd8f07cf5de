"""Who stands for what was said: offers and receipts by the coordinator, results by the device that made them.

A message is signed over the digest of all that it says, so that nobody has to agree on how JSON is written.
"""

import json
from typing import TypeVar

from cryptography.exceptions import InvalidSignature

from atoll.errors import CorruptError
from atoll.net import keys, statements
from atoll.net.protocol import LeaseOffer, Receipt, Result
from atoll.net.statements import Signer

Signed = TypeVar("Signed", LeaseOffer, Receipt)
RESULT = "result"
"""The kind of statement by which a device hands in a result."""
LISTED = 100
"""Hashes of a chain that the statement lists; of a longer one the result's digest speaks."""


def message_bytes(message: LeaseOffer | Receipt) -> bytes:
    """What a coordinator signs of an answer: everything but the signature."""
    kind = type(message).__name__.lower()
    return f"atoll {kind} v1 {message.model_copy(update={'signature': ''}).digest}".encode()


def signed(message: Signed, signer: Signer) -> Signed:
    """The same message with the coordinator's signature."""
    return message.model_copy(update={"signature": signer.key.sign(message_bytes(message)).hex()})


def check(message: LeaseOffer | Receipt, coordinator: str) -> None:
    """A CorruptError unless the coordinator that the manifest names stands for a message."""
    try:
        signature = bytes.fromhex(message.signature)
        keys.public_key(coordinator).verify(signature, message_bytes(message))
    except (InvalidSignature, ValueError, keys.KeyProblem):
        kind = "a lease" if isinstance(message, LeaseOffer) else "a receipt"
        raise CorruptError(f"{kind} is not signed by the coordinator; do not work for it") from None


def handed_in(result: Result, lease: str, fence: int, signer: Signer, at: float) -> str:
    """A device's statement that this is what it made of a unit."""
    facts = {"lease": lease, "fence": fence, "unit": result.unit, "result": result.digest}
    chain = list(result.chain) if len(result.chain) <= LISTED else []
    return signer.envelope(RESULT, {**facts, "chain": chain}, at).decode()


def is_handed_in(envelope: str, result: Result, lease: str, fence: int, device: str, run: str) -> bool:
    """Whether a device's statement is about just this result."""
    try:
        statement = statements.opened(envelope.encode(), {device})
        json.loads(envelope)
    except (CorruptError, ValueError, RecursionError):
        return False
    facts = statement.facts
    content = (statement.kind, statement.run, facts.get("lease"), facts.get("fence"), facts.get("result"))
    return content == (RESULT, run, lease, fence, result.digest)
