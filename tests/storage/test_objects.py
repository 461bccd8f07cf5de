"""The store against a real S3 server, through a proxy that fails when it is told to."""

import hashlib
import os
import threading
import time
from types import SimpleNamespace

import pytest

from atoll.errors import ConfigError, CorruptError, Interrupted, StorageError
from atoll.storage import objects
from atoll.storage.objects import Store
from tests import s3


@pytest.fixture
def told():
    return []


@pytest.fixture
def opened(store, told, monkeypatch):
    monkeypatch.setattr(objects, "LONGEST_WAIT", 0.5)
    return Store(store.address, patience=60, tell=lambda kind, **facts: told.append((kind, facts)))


@pytest.fixture(params=["s3", "gs", "folder", "file"])
def either(request, tmp_path):
    """A bucket, of Amazon's or Google's protocol, or a mounted folder: the same promises."""
    if request.param in ("folder", "file"):
        return Store(f"{'file://' if request.param == 'file' else ''}{tmp_path / 'mounted'}")
    return Store(request.getfixturevalue("store" if request.param == "s3" else "google").address)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_small_files(either):
    assert either.read("a/b.json") is None
    assert not either.has("a/b.json")
    assert either.read_json("a/b.json") is None
    either.write("a/b.json", b'{"x": 1}')
    either.write("a/b.json", b'{"x": 2}')
    assert either.read_json("a/b.json") == {"x": 2}
    assert either.has("a/b.json")
    either.write("ab", b"")
    assert either.read("ab") == b""
    assert {name: size for name, (_, size) in either.names("a").items()} == {"a/b.json": 8}
    either.delete(["a/b.json", "a/never"])
    assert either.names() == {"ab": either.names()["ab"]}


def test_only_one_of_many_creates(either):
    won = []

    def race(number):
        if either.create("done.json", f"by {number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert either.read("done.json") == f"by {won[0]}".encode()


def test_what_was_created_in_spite_of_a_lost_answer_is_ours(opened, store):
    assert opened.create("done.json", b"mine")
    assert opened.create("done.json", b"mine"), "the same again, as after an answer that got lost"
    assert not opened.create("done.json", b"yours")


@pytest.mark.parametrize("size", [0, 10, objects.CHUNK, 2 * objects.CHUNK + 7])
def test_files_of_any_size_there_and_back(either, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "up").write_bytes(data)
    either.push(tmp_path / "up", "folder/file.bin")
    either.pull("folder/file.bin", tmp_path / "down" / "file.bin", sha(data))
    assert (tmp_path / "down" / "file.bin").read_bytes() == data
    assert [path.name for path in (tmp_path / "down").iterdir()] == ["file.bin"], "nothing is left over"


def test_large_files_go_up_in_parts_and_down_in_chunks(opened, store, tmp_path):
    (tmp_path / "up").write_bytes(os.urandom(2 * objects.CHUNK + 7))
    opened.push(tmp_path / "up", "big")
    assert (
        len([path for method, path in store.proxy.requests if method == "PUT" and "partNumber" in path]) == 3
    )
    opened.pull("big", tmp_path / "down", sha((tmp_path / "up").read_bytes()))
    assert (
        len([path for method, path in store.proxy.requests if method == "GET" and path.endswith("/big")]) == 3
    )
    before = len(store.proxy.requests)
    opened.push(tmp_path / "up", "big")
    assert [method for method, _ in store.proxy.requests[before:]] == ["HEAD"], (
        "what is there is not sent again"
    )


@pytest.mark.parametrize("how", ["503", "drop"])
def test_every_third_request_fails(opened, store, told, tmp_path, how):
    store.proxy.fault = lambda number, method, path: how if number % 3 == 0 else None
    data = [os.urandom(1000 + number) for number in range(7)]
    for number, content in enumerate(data):
        (tmp_path / "up").write_bytes(content)
        opened.push(tmp_path / "up", f"f{number}")
        opened.pull(f"f{number}", tmp_path / f"down{number}", sha(content))
        assert opened.create(f"c{number}", content)
        assert not opened.create(f"c{number}", b"other")
    assert [(tmp_path / f"down{number}").read_bytes() for number in range(7)] == data
    assert store.proxy.faults > 10
    assert len(told) == store.proxy.faults, "every fault is told, and only faults"
    assert {facts["problem"] for _, facts in told} <= {"HTTP 503", "the connection broke", "no connection"}


def test_every_third_request_fails_in_a_large_upload(opened, store, tmp_path):
    store.proxy.fault = lambda number, method, path: "503" if number % 3 == 0 else None
    data = os.urandom(3 * objects.CHUNK)
    (tmp_path / "up").write_bytes(data)
    opened.push(tmp_path / "up", "big")
    opened.pull("big", tmp_path / "down", sha(data))
    assert (tmp_path / "down").read_bytes() == data


def test_writes_refused_for_a_while(opened, store, told):
    until = time.monotonic() + 2
    store.proxy.fault = lambda number, method, path: (
        "503" if method in ("PUT", "POST") and time.monotonic() < until else None
    )
    assert opened.create("done.json", b"x")
    assert len(told) >= 3, "it came back several times"
    assert {facts["operation"] for _, facts in told} == {"create"}


@pytest.mark.parametrize(("how", "said"), [("truncate", "broke"), ("short", "bytes came of")])
def test_a_truncated_object_is_asked_for_again(opened, store, told, tmp_path, how, said):
    data = os.urandom(50_000)
    opened.write("file", data)
    due = [how]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    opened.pull("file", tmp_path / "file", sha(data))
    assert (tmp_path / "file").read_bytes() == data
    assert [said in facts["problem"] for _, facts in told] == [True], told


def test_truncated_json_is_asked_for_again(opened, store, told):
    opened.write("done.json", b'{"files": {"a": "b"}}')
    due = ["short"]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    assert opened.read_json("done.json") == {"files": {"a": "b"}}
    assert len(told) == 1


def test_a_truncated_small_file_is_asked_for_again(opened, store, told):
    """Lines of events or metrics: nothing in them says how many there should be."""
    opened.write("events.jsonl", b'{"event": 1}\n{"event": 2}\n')
    due = ["short"]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    assert opened.read("events.jsonl") == b'{"event": 1}\n{"event": 2}\n'
    assert ["bytes came of" in facts["problem"] for _, facts in told] == [True]


def test_a_pull_goes_on_where_it_stopped(opened, store, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "CHUNK", 10_000)
    data = os.urandom(45_000)
    opened.write("file", data)

    class GoneError(Exception):
        pass

    class Died(Store):
        def _range(self, name, start, end):
            if start >= 20_000:
                raise GoneError
            return super()._range(name, start, end)

    with pytest.raises(GoneError):
        Died(store.address).pull("file", tmp_path / "file", sha(data))
    assert not (tmp_path / "file").exists()
    store.proxy.reset()
    opened.pull("file", tmp_path / "file", sha(data))
    assert (tmp_path / "file").read_bytes() == data
    assert len([1 for method, _ in store.proxy.requests if method == "GET"]) == 3, "the last 25,000 bytes"


def test_a_rotten_beginning_is_thrown_away(opened, tmp_path, told):
    data = os.urandom(1000)
    opened.write("file", data)
    (tmp_path / f".file.{sha(data)[:12]}.partial").write_bytes(b"rotten")
    opened.pull("file", tmp_path / "file", sha(data))
    assert (tmp_path / "file").read_bytes() == data
    assert told[0][1]["problem"] == "sha256 differs"


def test_a_damaged_object_is_never_put_in_place(opened, tmp_path):
    opened.write("file", b"not it")
    with pytest.raises(CorruptError, match="damaged"):
        opened.pull("file", tmp_path / "file", sha(b"it"))
    assert not (tmp_path / "file").exists()


def test_two_jobs_of_a_machine_pull_the_same(store, tmp_path, opened):
    data = os.urandom(300_000)
    opened.write("file", data)
    stores = [Store(store.address) for _ in range(6)]
    threads = [
        threading.Thread(target=one.pull, args=("file", tmp_path / "file", sha(data))) for one in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir() if "file" in path.name] == ["file"]
    assert len([1 for method, _ in store.proxy.requests if method == "GET"]) == 1


def test_patience_runs_out(store):
    store.proxy.fault = lambda number, method, path: "503"
    with pytest.raises(Interrupted, match=r"does not answer \(HTTP 503\)"):
        Store(store.address, patience=0.5).read("x")


def environment(monkeypatch, port, **changes):
    for name, value in s3.environment(port, **changes).items():
        monkeypatch.setenv(name, value)


def test_waits_grow(store, monkeypatch):
    """Each about twice the one before, up to the longest; a store that is down is not besieged."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setattr(objects, "time", clock)
    monkeypatch.setattr("atoll.storage.objects.random.uniform", lambda low, high: 1.0)
    store.proxy.fault = lambda number, method, path: "503"
    with pytest.raises(Interrupted):
        Store(store.address, patience=50).read("x")
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])


def without_secrets(text):
    assert s3.SECRET not in text and s3.KEY not in text
    assert s3.READER_SECRET not in text and s3.READER not in text
    assert "wrong-secret" not in text and "Signature=" not in text and s3.TOKEN not in text
    assert "\n" not in text
    return text


def test_a_wrong_secret(store, monkeypatch):
    environment(monkeypatch, store.proxy.port, secret="wrong-secret")
    with pytest.raises(StorageError) as caught:
        Store(store.address).check()
    assert "does not accept your key" in without_secrets(str(caught.value))


def test_a_wrong_token_of_google(google, monkeypatch):
    for name, value in google.proxy.environment("wrong-secret").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError) as caught:
        Store(google.address).check()
    assert "access is not allowed" in without_secrets(str(caught.value))


def test_an_absent_bucket_of_google(google):
    with pytest.raises(StorageError) as caught:
        Store("gs://nowhere/runs").check()
    assert "there is no such bucket" in without_secrets(str(caught.value))


def test_no_key_at_all(store, monkeypatch):
    """Neither variables nor a role of the machine, which is asked over the network."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{s3.free_ports(1)[0]}")
    monkeypatch.setattr(objects, "METADATA", (os.environ["AWS_METADATA_ENDPOINT"],))
    with pytest.raises(StorageError) as caught:
        Store(store.address).check()
    assert "there is no key" in without_secrets(str(caught.value))


def test_an_unknown_key(store, monkeypatch):
    environment(monkeypatch, store.proxy.port, key="AKNOBODY")
    with pytest.raises(StorageError) as caught:
        Store(store.address).write("x", b"")
    assert "does not accept your key" in without_secrets(str(caught.value))


def test_an_absent_bucket(store):
    for action in (Store.check, lambda one: one.read_json("x"), lambda one: one.names("x")):
        with pytest.raises(StorageError) as caught:
            action(Store("s3://nowhere/runs"))
        assert "there is no such bucket" in without_secrets(str(caught.value))


def test_a_bucket_that_may_only_be_read(store, opened, monkeypatch):
    opened.write("x", b"1")
    environment(monkeypatch, store.proxy.port, key=s3.READER, secret=s3.READER_SECRET)
    reader = Store(store.address)
    reader.check()
    assert reader.read("x") == b"1"
    for action in (reader.write, reader.create):
        with pytest.raises(StorageError) as caught:
            action("y", b"")
        assert "writing is not allowed" in without_secrets(str(caught.value))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://key:secret@bucket/x", "must not hold a key"),
        ("s3://bucket/x?X-Amz-Signature=secret", "must not hold a key"),
        ("ftp://host/x", "is not known"),
        ("s3://", "names no bucket"),
        ("bucket/runs", "another folder on every machine"),
        ("file://bucket/runs", "another folder on every machine"),
    ],
)
def test_addresses_that_are_refused(address, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Store(address)
    assert "secret" not in str(caught.value)


def test_a_mount_that_is_missing_is_not_made(tmp_path):
    with pytest.raises(StorageError, match="there is no such folder; mount it"):
        Store(str(tmp_path / "not-mounted" / "run"))
    assert not (tmp_path / "not-mounted").exists()


def test_a_folder_that_may_only_be_read(tmp_path, told):
    """The kernel's own folders: nobody makes files there, whoever he is."""
    with pytest.raises(StorageError, match="writing is not allowed"):
        Store("/sys/atoll")
    reader = Store("/sys/kernel", tell=lambda kind, **facts: told.append(kind))
    with pytest.raises(StorageError, match="writing is not allowed"):
        reader.write("atoll", b"1")
    assert told == [], "it is no fault that would pass"
