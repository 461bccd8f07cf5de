import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.sampling.arrays import ArrayFile, Numbers, free_bytes


@given(st.permutations(range(9)), st.integers(1, 9), st.integers(1, 4))
def test_rows_in_any_order_and_as_many_as_came(tmp_path_factory, order, came, at_once):
    folder = tmp_path_factory.mktemp("array")
    file = ArrayFile(folder / "a.npy", 9, (2, 3))
    rows = np.arange(54, dtype=np.float32).reshape(9, 2, 3)
    for start in range(0, came, at_once):
        some = order[start : min(start + at_once, came)]
        file.put(some, rows[some])
    assert not (folder / "a.npy").exists(), "until it is finished it is not there"
    file.finish()
    stored = np.load(folder / "a.npy", allow_pickle=False)
    np.testing.assert_array_equal(stored, rows[sorted(order[:came])])
    assert [path.name for path in folder.iterdir()] == ["a.npy"]


def test_an_abandoned_file_leaves_nothing(tmp_path):
    file = ArrayFile(tmp_path / "a.npy", 3, (1,))
    file.put([2], np.ones((1, 1), np.float32))
    file.abandon()
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_done_are_kept_in_little():
    done = Numbers()
    done.add([3, 1])
    assert list(done) == [1, 3]
    done.add([0, 2, 6])
    assert (list(done), len(done), done._after) == ([0, 1, 2, 3, 6], 5, {6})


def test_room_is_asked_of_a_folder_that_is_not_there_yet(tmp_path):
    assert free_bytes(tmp_path / "a" / "b") > 0
