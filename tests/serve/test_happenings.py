"""Events in words, faults apart."""

import json

from atoll.serve.happenings import KEPT, Happenings, happening


def write(path, *lines):
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def test_words_for_people():
    line = {"time": 5.0, "event": "checkpoint", "by": "abc", "stage": "experts/00", "step": 300}
    assert happening(line) == (5.0, "saved", "experts/00", "step 300", False)
    assert happening({"event": "making", "stages": ["data", "router"], "time": 1}).facts == (
        "stages data, router"
    )
    lost = happening({"event": "lost", "what": "driver", "host": "node-3", "time": 1})
    assert lost.is_fault and (lost.stage, lost.facts) == ("driver", "host node-3")
    assert happening({"event": "brand_new", "time": "yesterday"}) == (0.0, "brand new", "", "", False)


def test_what_failed_is_remembered_until_it_begins_again(tmp_path):
    happenings = Happenings(tmp_path / "events.jsonl")
    happenings.look()
    assert happenings.newest() == []
    write(
        happenings._follower.path,
        {"time": 1, "event": "began", "stage": "expert 0"},
        {"time": 2, "event": "failed", "stage": "expert 0", "problem": "no space left"},
        {"time": 3, "event": "failed", "problem": "expert 0 failed: no space left"},
    )
    happenings.look()
    assert happenings.problems == {"expert 0": "no space left"}
    assert [one.words for one in happenings.newest()] == ["failed", "failed", "began"]
    write(happenings._follower.path, {"time": 4, "event": "began", "stage": "expert 0"})
    happenings.look()
    assert happenings.problems == {} and happenings.count == 4
    write(happenings._follower.path, {"time": 2, "event": "failed", "stage": "router", "problem": "x"})
    happenings.look()
    write(happenings._follower.path, {"time": 5, "event": "making", "stages": []})
    happenings.look()
    assert happenings.problems == {}, "a new start forgets"


def test_of_many_only_the_newest_are_kept(tmp_path):
    happenings = Happenings(tmp_path / "events.jsonl")
    write(happenings._follower.path, *({"time": n, "event": "checkpoint"} for n in range(KEPT + 50)))
    happenings.look()
    assert happenings.count == KEPT + 50
    assert [one.time for one in happenings.newest()] == list(range(KEPT + 49, 49, -1))
