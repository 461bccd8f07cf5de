"""Histories are read whole or with what is wrong, and compared with what somebody remembers."""

import pytest

from atoll.errors import CorruptError
from atoll.net import facts, history, notes, tiles
from tests.net import past as room
from tests.net.past import honest
from tests.net.test_log import stride


def test_an_honest_history_is_read_without_a_fault():
    past = honest()
    read = history.read(past.publish())
    assert read.faults == {}
    assert (read.run, read.coordinator) == (past.run, notes.public_hex(room.COORDINATOR))
    assert [entry.index for entry in read.statements] == list(range(24))
    assert [lease.lease for _, lease in read.of(facts.Lease)] == ["l0", "l1", "l2"]


def test_without_a_checkpoint_there_is_no_history():
    past = honest().publish()
    del past.files["checkpoint"]
    with pytest.raises(CorruptError, match="no checkpoint"):
        history.read(past)


def test_another_key_for_the_log_may_be_given():
    past = honest().publish(key=room.ANN)
    assert "checkpoint" in history.read(past).faults
    assert history.read(past, notes.public_hex(room.ANN)).faults == {}


def test_every_file_of_a_small_log_cut_off_anywhere_is_a_fault_or_refused():
    """Never silently shorter: at every byte of checkpoint and tiles, at every third of the entries."""
    past = honest(1).publish()
    whole = dict(past.files)
    for name, data in whole.items():
        for length in range(0, len(data), stride(3) if "entries" in name else 1):
            past.files = {**whole, name: data[:length]}
            try:
                assert history.read(past).faults, (name, length)
            except CorruptError as error:
                assert str(error)
    past.files = whole
    assert history.read(past).faults == {}


def test_logs_that_go_on_are_consistent_and_others_are_not():
    before, now = honest(1).publish(), honest(3).publish()
    key = notes.public_hex(room.LOG)
    first, last = (notes.opened(one.files["checkpoint"], key) for one in (before, now))
    assert history.consistent(now, first, last) is None
    assert history.consistent(now, last, last) is None
    assert "shorter" in history.consistent(before, last, first)
    other = notes.Checkpoint(first.origin, first.size, bytes(32))
    assert "rewritten or forked" in history.consistent(now, other, last)
    assert "is called" in history.consistent(now, notes.Checkpoint("x", 1, bytes(32)), last)
    del now.files[tiles.path(0, 0, 24)]
    assert "nothing shows" in history.consistent(now, first, last)
