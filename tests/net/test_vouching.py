"""Signatures of offers, receipts and results: whatever is changed, they do not fit any more."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import CorruptError
from atoll.net import keys, vouching
from atoll.net.protocol import LeaseOffer, Numerics, Receipt, Result, Unit
from atoll.net.statements import Signer

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
RUN = "e" * 64
SIGNER = Signer(KEY, RUN)
UNIT = Unit(run=RUN, name="u", stage="s", role="train", first=0, last=20, every=10)
OFFER = LeaseOffer(
    lease="l", unit=UNIT, fence=1, heartbeat_s=60, soft_deadline=1.5, hard_deadline=2.25, now=0.1
)
RECEIPT = Receipt(submission="s", lease="l", unit="0" * 64, result="1" * 64, state="accepted", price=3)
RESULT = Result(unit=UNIT.digest, chain=("a" * 64, "b" * 64), numerics=Numerics(), seconds=0.1)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (OFFER, {"fence": 2}),
        (OFFER, {"probation": True}),
        (RECEIPT, {"price": 4}),
        (RECEIPT, {"state": "rejected"}),
    ],
)
def test_an_answer_is_the_coordinators_as_it_is(message, change):
    signed = vouching.signed(message, SIGNER)
    again = type(message).model_validate_json(signed.model_dump_json())
    vouching.check(again, SIGNER.public)
    for false in (message, signed.model_copy(update=change), vouching.signed(message, Signer(OTHER, RUN))):
        with pytest.raises(CorruptError, match="not signed by the coordinator"):
            vouching.check(false, SIGNER.public)


def test_a_result_is_its_devices_and_of_this_lease_and_run():
    device = keys.public_hex(KEY)
    envelope = vouching.handed_in(RESULT, "l", 1, SIGNER, 5.0)
    assert vouching.is_handed_in(envelope, RESULT, "l", 1, device, RUN)
    other = RESULT.model_copy(update={"seconds": 0.2})
    assert not vouching.is_handed_in(envelope, other, "l", 1, device, RUN)
    assert not vouching.is_handed_in(envelope, RESULT, "m", 1, device, RUN)
    assert not vouching.is_handed_in(envelope, RESULT, "l", 2, device, RUN)
    assert not vouching.is_handed_in(envelope, RESULT, "l", 1, keys.public_hex(OTHER), RUN)
    assert not vouching.is_handed_in(envelope, RESULT, "l", 1, device, "f" * 64)
    assert not vouching.is_handed_in("{}", RESULT, "l", 1, device, RUN)
