import json
import os

from hypothesis import given
from hypothesis import strategies as st

from atoll.runs import Follower, Metrics, Tail, read_lines

LINE = {"time": 1e9, "loss": 0.25, "samples_per_second": 100.0, "norm": 1.0}


def text(step: int) -> bytes:
    return (json.dumps({"step": step, **LINE}) + "\n").encode()


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_the_newest_line_and_every_byte_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.latest() == {}
    for step in range(1, 6):
        append(path, text(step))
        assert tail.latest()["step"] == step
        assert tail.latest()["step"] == step
    assert tail.bytes_read == path.stat().st_size


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail, line = Tail(path), text(2)
    append(path, text(1) + line[:20])
    assert tail.latest()["step"] == 1
    append(path, line[20:])
    assert tail.latest()["step"] == 2


@given(cuts=st.lists(st.integers(0, 400), max_size=8), damage=st.integers(0, 4))
def test_however_a_file_grows_it_is_read_as_a_whole_would_be(tmp_path_factory, cuts, damage):
    path = tmp_path_factory.mktemp("grown") / "metrics.jsonl"
    lines = [b"{damaged\n" if step == damage else text(step) for step in range(4)]
    whole, tail, before = b"".join(lines), Tail(path), 0
    for cut in [*sorted(cuts), len(whole)]:
        append(path, whole[before:cut])
        before = min(cut, len(whole))
        seen = path.read_bytes()
        ended = seen[: seen.rfind(b"\n") + 1].splitlines()
        good = [json.loads(line) for line in ended if line != b"{damaged"]
        assert tail.latest() == (good[-1] if good else {})
    assert tail.latest() == read_lines(path)[-1]


def test_a_resumed_job_takes_lines_back(tmp_path):
    """Its file is replaced by one without the steps that will be taken again."""
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    for step in (10, 20, 30):
        append(path, text(step))
    assert tail.latest()["step"] == 30
    metrics = Metrics(path, 10)
    assert tail.latest()["step"] == 10
    metrics.write(20, loss=0.1)
    metrics.close()
    assert (tail.latest()["step"], tail.latest()["loss"]) == (20, 0.1)


def test_a_file_that_was_cut_or_thrown_away(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    append(path, text(1) + text(2))
    assert tail.latest()["step"] == 2
    with path.open("r+b") as file:
        file.truncate(len(text(1)))
    assert tail.latest()["step"] == 1
    path.unlink()
    assert tail.latest() == {}


def test_sixty_four_jobs_of_a_million_steps(tmp_path):
    """Under one per cent of a core: five looks a second at 64 files, and next to nothing is read.

    Parsing JSON runs at tens of megabytes a second and more, so 10 MB/s would be the whole of a core at
    worst, and one per cent 100 kB/s. The first look reads the ends of all files, once.
    """
    line, jobs, looks = text(999_999), 64, 5
    tails = []
    for index in range(jobs):
        path = tmp_path / f"{index}.jsonl"
        path.touch()
        os.truncate(path, 1_000_000 * len(line))  # holes in place of a million lines
        append(path, b"\n" + line)
        tails.append(Tail(path))
        assert tails[-1].latest()["step"] == 999_999
    first = sum(tail.bytes_read for tail in tails)
    assert first <= jobs * Tail.PIECE
    for _ in range(looks):
        assert all(tail.latest()["step"] == 999_999 for tail in tails)
    assert sum(tail.bytes_read for tail in tails) == first, "what does not grow is not read"
    for tail in tails:  # a second in which each job has written a line
        append(tail.path, text(1_000_000))
        for _ in range(looks):
            assert tail.latest()["step"] == 1_000_000
    assert sum(tail.bytes_read for tail in tails) - first == jobs * len(text(1_000_000)) < 100_000


def test_others_are_told_every_line(tmp_path):
    heard = []
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, lambda step, values: heard.append((step, values)))
    metrics.write(2, loss=0.5)
    metrics.close()
    assert heard == [(2, {"loss": 0.5})]


@given(cuts=st.lists(st.integers(0, 500), max_size=8), damage=st.integers(0, 5))
def test_a_follower_gives_every_good_line_once_and_reads_every_byte_once(tmp_path_factory, cuts, damage):
    path = tmp_path_factory.mktemp("grown") / "metrics.jsonl"
    lines = [b"{damaged\n" if step == damage else text(step) for step in range(5)]
    whole, follower, before, steps = b"".join(lines), Follower(path), 0, []
    assert follower.more() == (False, [])
    for number, cut in enumerate([*sorted(cuts), len(whole)]):
        append(path, whole[before:cut])
        before = min(cut, len(whole))
        anew, more = follower.more()
        assert anew == (number == 0)
        steps += [line["step"] for line in more]
    assert steps == [step for step in range(5) if step != damage]
    assert follower.bytes_read == len(whole)


def test_a_follower_says_that_a_file_began_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    append(path, text(1) + text(2))
    assert [line["step"] for line in follower.more()[1]] == [1, 2]
    Metrics(path, done=1).close()  # replaced by one that has lost a line
    anew, lines = follower.more()
    assert anew and [line["step"] for line in lines] == [1]
    path.unlink()
    assert follower.more() == (True, [])
    assert follower.more() == (False, [])
