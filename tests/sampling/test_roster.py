import threading
from functools import partial

import pytest
from torch import nn

from atoll.sampling import roster as roster_module
from atoll.sampling.roster import Roster


class Named(nn.Module):
    def __init__(self, name: int) -> None:
        super().__init__()
        self.name = name


def roster(resident):
    return Roster([partial(Named, k) for k in range(4)], resident)


def test_everyone_stays_by_default():
    experts = roster(None)
    assert [experts[k].name for k in range(4)] == [0, 1, 2, 3]
    assert experts[2] is experts[2]
    assert experts.loads == 4
    assert len(experts) == 4


def test_the_one_not_asked_for_longest_makes_room():
    experts = roster(2)
    first = experts[0]
    _ = experts[1]
    assert experts[0] is first
    _ = experts[2]  # 1 goes, not 0
    assert experts[0] is first
    assert experts.loads == 3
    _ = experts[1]
    assert experts.loads == 4


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_no_more_than_that_are_held(resident):
    experts = roster(resident)
    for index in (0, 1, 2, 3, 1, 0):
        assert experts[index].name == index
        assert len(experts._held) <= resident


def test_the_next_one_is_read_while_another_works(tmp_path, monkeypatch):
    files = [tmp_path / f"{k}.safetensors" for k in range(4)]
    for file in files[:3]:
        file.write_bytes(b"x" * 3_000_000)
    read: list[int] = []
    plain = roster_module._read

    def noted(path):
        plain(path)
        read.append(files.index(path))

    monkeypatch.setattr(roster_module, "_read", noted)
    experts = Roster([partial(Named, k) for k in range(4)], 1, files)
    _ = experts[0]
    assert experts.expect(0) is None, "it is here already"
    for coming in (1, 3):  # the last has no file; its loader will say so
        reading = experts.expect(coming)
        assert reading is not None
        reading.join()
    assert read == [1, 3]
    assert list(experts._held) == [0], "the promise of `resident` holds"
    assert roster(1).expect(2) is None, "nothing is known of files"


def test_threads_that_ask_at_once_load_an_expert_once():
    experts, gate = roster(2), threading.Barrier(8)

    def ask(number: int) -> None:
        gate.wait()
        assert experts[number % 2].name == number % 2

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert experts.loads == 2


def test_what_another_roster_holds_is_taken_over_by_its_mark():
    before = Roster([partial(Named, k) for k in range(3)], marks=["a", "b", "c"])
    held = [before[0], before[2]]
    after = Roster([partial(Named, k + 10) for k in range(4)], marks=["c", "b", None, "a"])
    after.take_over(before)
    assert [after[0], after[3]] == [held[1], held[0]]
    assert [after[k].name for k in (1, 2)] == [11, 12]
    assert after.loads == 4, "two before, two of its own"
    assert before.holds("a")
    assert not before.holds("b")
    small = Roster([partial(Named, k) for k in range(3)], 1, marks=["a", "b", "c"])
    small.take_over(before)
    assert small.holds("a")
    assert not small.holds("c"), "no more than there is room for"


def test_who_is_put_in_a_place_has_no_mark():
    experts = Roster([partial(Named, k) for k in range(2)], marks=["a", "b"])
    assert experts[0].name == 0
    experts.replace(0, partial(Named, 7), None, None, Named(7))
    assert not experts.holds("a")
    assert not experts.holds(None)
