"""Who remembers a log notices when it is rewritten, shortened or told differently to others."""

import pytest

from atoll.errors import CorruptError
from atoll.net import notes, witness
from atoll.net.witness import Memory
from tests.net import past as room
from tests.net.past import honest

KEY = notes.public_hex(room.LOG)


@pytest.fixture
def memory(tmp_path) -> Memory:
    return Memory(tmp_path / "seen" / "checkpoint", KEY)


def test_a_log_that_grows_is_remembered(memory):
    assert not memory.checkpoint
    for count in (1, 2, 2, 3):
        assert memory.check(honest(count).publish()) == memory.checkpoint
    assert memory.checkpoint.size == 24


def test_a_log_that_becomes_shorter_or_another_is_refused_and_the_evidence_kept(memory, tmp_path):
    memory.check(honest(2).publish())
    other = honest(3)
    other.change("lease", price=99)
    for liar in (honest(1), other):
        with pytest.raises(CorruptError, match="contradicts what it said before"):
            memory.check(liar.publish())
        assert memory.checkpoint.size == 17
        told = (tmp_path / "seen" / "checkpoint.contradiction").read_bytes()
        assert notes.opened(told, KEY) == notes.opened(liar.files["checkpoint"], KEY)


def test_a_log_of_another_key_or_none_is_refused(memory):
    with pytest.raises(CorruptError, match="not signed"):
        memory.check(honest().publish(key=room.ANN))
    with pytest.raises(CorruptError, match="no checkpoint"):
        memory.check(honest())


def test_a_witness_signs_only_what_goes_on(memory):
    past = honest(2).publish()
    note = witness.cosign(past, memory, "w.example", room.BOB, 77)
    assert notes.witnesses(note, {"w.example": notes.public_hex(room.BOB)}) == {"w.example": 77}
    with pytest.raises(CorruptError):
        witness.cosign(honest(1).publish(), memory, "w.example", room.BOB, 78)
