"""What every store promises, on each kind of store; a new kind is one more name in PLACES."""

import hashlib
import json
import os
import threading
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import CorruptError
from atoll.storage.download import CHUNK
from atoll.storage.store import open_store

PLACES = ["folder", "file", "s3", "gs"]


@pytest.fixture(params=PLACES)
def address(request, tmp_path):
    if request.param in ("folder", "file"):
        return f"{'file://' if request.param == 'file' else ''}{tmp_path / 'mounted'}"
    return request.getfixturevalue("store" if request.param == "s3" else "google").address


@pytest.fixture
def place(address):
    return open_store(address)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_what_is_not_there(place, tmp_path):
    place.check()
    assert place.read("a/b.json") is None
    assert place.read_json("a/b.json") is None
    assert not place.exists("a/b.json")
    assert place.names() == [] and place.names("a") == []
    place.delete(["a/b.json"])
    with pytest.raises(FileNotFoundError):
        place.download("a/b.json", tmp_path / "down" / "b.json", "00")
    assert not (tmp_path / "down" / "b.json").exists()


def test_small_files(place):
    place.write("a/b.json", b'{"x": 1}')
    place.write("a/b.json", b'{"x": 2}')
    assert place.read_json("a/b.json") == {"x": 2}
    assert place.read("a/b.json") == b'{"x": 2}'
    assert place.exists("a/b.json") and not place.exists("a")
    place.write("ab", b"")
    assert place.read("ab") == b""


def test_what_a_file_has_beyond_what_one_knows(place):
    assert place.read_from("lines", 0) is None
    place.write("lines", b"one\ntwo\n")
    assert place.read_from("lines", 0) == b"one\ntwo\n"
    assert place.read_from("lines", 4) == b"two\n"
    assert place.read_from("lines", 8) == b"" and place.read_from("lines", 9) == b""


def test_names_are_those_below_a_folder_in_order(place):
    for name in ("b/2", "b/10", "b/c/3", "bc/4", "a"):
        place.write(name, b"x")
    assert place.names("b") == ["b/10", "b/2", "b/c/3"], "not those of a folder that begins alike"
    assert place.names() == ["a", "b/10", "b/2", "b/c/3", "bc/4"]
    place.delete(["b/2", "b/never", "a"])
    assert place.names() == ["b/10", "b/c/3", "bc/4"]


def test_only_one_of_many_creates(address):
    winners = []

    def race(number):
        if open_store(address).create("done.json", f"by {number}".encode()):
            winners.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert open_store(address).read("done.json") == f"by {winners[0]}".encode()


def test_what_was_created_in_spite_of_a_lost_answer_is_ours(place):
    assert place.create("done.json", b"mine")
    assert place.create("done.json", b"mine"), "the same again, as after an answer that got lost"
    assert not place.create("done.json", b"yours")
    assert place.read("done.json") == b"mine"


@pytest.mark.parametrize("size", [0, 10, CHUNK, 2 * CHUNK + 7])
def test_files_of_any_size_there_and_back(place, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "up").write_bytes(data)
    place.upload(tmp_path / "up", "folder/file.bin")
    assert place.names() == ["folder/file.bin"], "and nothing on its way"
    place.download("folder/file.bin", tmp_path / "down" / "file.bin", sha(data))
    assert (tmp_path / "down" / "file.bin").read_bytes() == data
    assert [path.name for path in (tmp_path / "down").iterdir()] == ["file.bin"], "nothing is left over"


def test_a_file_that_vanishes_before_it_is_uploaded(place, tmp_path):
    with pytest.raises(FileNotFoundError):
        place.upload(tmp_path / "gone", "file")
    assert not place.exists("file")


def test_what_is_there_is_not_sent_again(place, tmp_path):
    (tmp_path / "file").write_bytes(b"first")
    place.upload(tmp_path / "file", "file.first")
    (tmp_path / "file").write_bytes(b"other")
    place.upload(tmp_path / "file", "file.first")
    assert place.read("file.first") == b"first", "a name says what is inside"


def test_a_damaged_file_is_never_put_in_place(place, tmp_path):
    place.write("file", b"not it")
    with pytest.raises(CorruptError, match="damaged") as caught:
        place.download("file", tmp_path / "down" / "file", sha(b"it"))
    assert "delete" not in str(caught.value) and "remove" not in str(caught.value)
    assert not (tmp_path / "down" / "file").exists()


def test_a_download_goes_on_where_it_stopped(place, tmp_path):
    data = os.urandom(1000)
    place.write("file", data)
    (tmp_path / f".file.{sha(data)[:12]}.partial").write_bytes(data[:600])
    place.download("file", tmp_path / "file", sha(data))
    assert (tmp_path / "file").read_bytes() == data


PARTS = st.sampled_from(["a", "b", "state", "step-1.safetensors", "x y", "Ünï"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(
    lambda parts: "/".join([*parts[:-1], f"{parts[-1]}.json"])
)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["write", "create"]), NAMES, st.binary(max_size=20)),
    st.tuples(st.sampled_from(["delete", "read", "exists", "names"]), NAMES, st.just(b"")),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=12))
def test_it_is_a_dictionary(address, actions):
    """Whatever is done in whatever order, the store holds what a dictionary would."""
    top = uuid.uuid4().hex
    place = open_store(f"{address}-{top}")
    model: dict[str, bytes] = {}
    for action, name, data in actions:
        if action == "write":
            place.write(name, data)
            model[name] = data
        elif action == "create":
            assert place.create(name, data) == (model.setdefault(name, data) == data)
        elif action == "delete":
            place.delete([name])
            model.pop(name, None)
        elif action == "read":
            assert place.read(name) == model.get(name)
        elif action == "exists":
            assert place.exists(name) == (name in model)
        else:
            under = name.rpartition("/")[0]
            assert place.names(under) == sorted(
                one for one in model if not under or one.startswith(f"{under}/")
            )
    assert {name: place.read(name) for name in place.names()} == model


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=3))
def test_json_comes_back_as_it_was(address, value):
    place = open_store(address)
    place.write("value.json", json.dumps(value).encode())
    assert place.read_json("value.json") == value
