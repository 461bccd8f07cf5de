import json

import pytest

from atoll.errors import CorruptError
from atoll.runs import Run
from atoll.runs.components import MEMBERS, Member, Members, read_members, write_members

DIGEST = "0" * 64


def member(number):
    return Member(number=number, name=f"part-{number}", digest=DIGEST)


def test_a_run_that_nothing_was_added_to_has_its_own_parts(finished):
    assert finished.members == Members()
    assert [stage.path for stage in finished.parts] == [finished.expert(k).path for k in range(3)]
    assert Members().serving(3) == [0, 1, 2]


def test_numbers_go_on_and_are_never_given_twice():
    members = Members(added=(member(3), member(4)), dropped=(1, 3))
    assert members.count(3) == 5
    assert members.serving(3) == [0, 2, 4]
    assert [one.number for one in members.present] == [4]
    assert Members(added=(member(3),), dropped=(3,)).count(3) == 4


def test_members_are_written_and_read(finished):
    members = Members(added=(member(3),), dropped=(0,), betas=(0.5, 0.25))
    write_members(finished.path, members)
    again = Run.open(finished.path)
    assert again.members == members
    assert [stage.path.name for stage in again.parts] == ["00", "01", "02", "03"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"added": [{"number": -1, "name": "x", "digest": DIGEST}]},
        {"added": [{"number": 3, "name": "x", "digest": "zz"}]},
        {"betas": []},
        {"betas": [-1.0]},
        {"dropped": ["0"]},
        {"other": 1},
    ],
)
def test_what_is_no_list_of_members_is_refused(tmp_path, change):
    tree = Members().model_dump(mode="json")
    (tmp_path / MEMBERS).parent.mkdir()
    (tmp_path / MEMBERS).write_text(json.dumps({**tree, **change}))
    with pytest.raises(Exception, match=r"members.json") as refused:
        read_members(tmp_path)
    assert isinstance(refused.value, CorruptError) or "newer" in str(refused.value)
