"""Checkpoints against C2SP's own example and tlog-scales, and whatever a stranger may send."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales import signing, tlog

from atoll.errors import CorruptError
from atoll.net import notes

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
CHECKPOINT = notes.Checkpoint("log.example/run", 20852163, bytes(range(32)))
SIGNED = notes.signed(CHECKPOINT, KEY)


def test_a_checkpoint_is_read_as_it_was_written():
    assert notes.opened(SIGNED, notes.public_hex(KEY)) == CHECKPOINT


def test_a_second_implementation_reads_and_verifies_it():
    theirs = tlog.Checkpoint.from_text(SIGNED.decode())
    assert (theirs.origin, theirs.size, theirs.root_hash) == ("log.example/run", 20852163, bytes(range(32)))
    theirs.verify(signing.Vkey.from_string(notes.verifier_key("log.example/run", notes.public_hex(KEY))))


def test_what_a_second_implementation_signs_is_read_here():
    signer = signing.PlainEd25519Signer(CHECKPOINT.origin, KEY)
    theirs = tlog.Checkpoint.make_signed(CHECKPOINT.origin, CHECKPOINT.size, CHECKPOINT.root, [signer])
    assert theirs.serialize().encode() == SIGNED


def test_witnesses_cosign_as_a_second_implementation_understands():
    note = notes.cosigned(SIGNED, "witness.example/w1", OTHER, 1679315147)
    theirs = tlog.Checkpoint.from_text(note.decode())
    public = notes.public_hex(OTHER)
    vkey = notes.verifier_key("witness.example/w1", public, notes.COSIGNATURE)
    theirs.verify(signing.Vkey.from_string(vkey))
    assert notes.witnesses(note, {"witness.example/w1": public, "another": public}) == {
        "witness.example/w1": 1679315147
    }
    assert notes.opened(note, notes.public_hex(KEY)) == CHECKPOINT


def test_the_text_is_that_of_the_specification():
    root = base64.b64decode("CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=")
    text = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    checkpoint = notes.Checkpoint("example.com/behind-the-sofa", 20852163, root)
    assert checkpoint.text == text
    assert notes.checkpoint_of(text) == checkpoint


@pytest.mark.parametrize("place", range(0, len(SIGNED), 3))
def test_no_byte_of_it_can_be_changed(place):
    changed = SIGNED[:place] + bytes([SIGNED[place] ^ 1]) + SIGNED[place + 1 :]
    with pytest.raises(CorruptError):
        notes.opened(changed, notes.public_hex(KEY))


def test_no_part_of_it_can_be_cut_off():
    for length in range(len(SIGNED)):
        with pytest.raises(CorruptError):
            notes.opened(SIGNED[:length], notes.public_hex(KEY))


def test_another_key_is_another_log():
    with pytest.raises(CorruptError, match="not signed with the key"):
        notes.opened(SIGNED, notes.public_hex(OTHER))


def test_a_forged_cosignature_is_refused():
    note = notes.cosigned(SIGNED, "w", OTHER, 5).replace(b"20852163", b"20852164")
    with pytest.raises(CorruptError, match="cosignature of w"):
        notes.witnesses(note, {"w": notes.public_hex(OTHER)})


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_noise_is_refused_in_words(raw):
    with pytest.raises(CorruptError):
        notes.opened(raw, notes.public_hex(KEY))
    with pytest.raises(CorruptError):
        notes.opened(raw + b"\n\n" + SIGNED.split(b"\n\n")[1], notes.public_hex(KEY))
