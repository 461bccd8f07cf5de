"""The store against a real S3 server, through a proxy that fails when it is told to."""

import hashlib
import os
import threading

import pytest

from atoll.errors import Interrupted, StorageError
from atoll.storage import objects
from atoll.storage.download import CHUNK
from atoll.storage.objects import ObjectStore
from tests import s3
from tests.clocks import ManualClock


@pytest.fixture
def opened(store, events):
    event = lambda kind, **facts: events.append((kind, facts))  # noqa: E731
    return ObjectStore(store.address, 60, event, ManualClock())


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_large_files_go_up_in_parts_and_down_in_chunks(opened, store, tmp_path):
    (tmp_path / "up").write_bytes(os.urandom(2 * CHUNK + 7))
    opened.upload(tmp_path / "up", "big")
    assert (
        len([path for method, path in store.proxy.requests if method == "PUT" and "partNumber" in path]) == 3
    )
    opened.download("big", tmp_path / "down", sha((tmp_path / "up").read_bytes()))
    assert (
        len([path for method, path in store.proxy.requests if method == "GET" and path.endswith("/big")]) == 3
    )
    before = len(store.proxy.requests)
    opened.upload(tmp_path / "up", "big")
    assert [method for method, _ in store.proxy.requests[before:]] == ["HEAD"], (
        "what is there is not sent again"
    )


@pytest.mark.parametrize("how", ["503", "drop"])
def test_every_third_request_fails(opened, store, events, tmp_path, how):
    store.proxy.fault = lambda number, method, path: how if number % 3 == 0 else None
    data = [os.urandom(1000 + number) for number in range(7)]
    for number, content in enumerate(data):
        (tmp_path / "up").write_bytes(content)
        opened.upload(tmp_path / "up", f"f{number}")
        opened.download(f"f{number}", tmp_path / f"down{number}", sha(content))
        assert opened.create(f"c{number}", content)
        assert not opened.create(f"c{number}", b"other")
    assert [(tmp_path / f"down{number}").read_bytes() for number in range(7)] == data
    assert store.proxy.faults > 10
    assert len(events) == store.proxy.faults, "every fault is an event, and only faults are"
    assert {facts["problem"] for _, facts in events} <= {"HTTP 503", "the connection broke", "no connection"}


def test_every_third_request_fails_in_a_large_upload(opened, store, tmp_path):
    store.proxy.fault = lambda number, method, path: "503" if number % 3 == 0 else None
    data = os.urandom(3 * CHUNK)
    (tmp_path / "up").write_bytes(data)
    opened.upload(tmp_path / "up", "big")
    opened.download("big", tmp_path / "down", sha(data))
    assert (tmp_path / "down").read_bytes() == data


def test_writes_refused_for_a_while(opened, store, events):
    store.proxy.fault = lambda number, method, path: "503" if method == "PUT" and number < 6 else None
    assert opened.create("done.json", b"x")
    assert len(events) == 5, "it came back several times"
    assert {facts["operation"] for _, facts in events} == {"create"}


@pytest.mark.parametrize(("how", "said"), [("truncate", "broke"), ("short", "bytes came of")])
def test_a_truncated_object_is_asked_for_again(opened, store, events, tmp_path, how, said):
    data = os.urandom(50_000)
    opened.write("file", data)
    due = [how]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    opened.download("file", tmp_path / "file", sha(data))
    assert (tmp_path / "file").read_bytes() == data
    assert [said in facts["problem"] for _, facts in events] == [True], events


def test_truncated_json_is_asked_for_again(opened, store, events):
    opened.write("done.json", b'{"files": {"a": "b"}}')
    due = ["short"]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    assert opened.read_json("done.json") == {"files": {"a": "b"}}
    assert len(events) == 1


def test_a_truncated_small_file_is_asked_for_again(opened, store, events):
    """Lines of events or metrics: nothing in them says how many there should be."""
    opened.write("events.jsonl", b'{"event": 1}\n{"event": 2}\n')
    due = ["short"]
    store.proxy.fault = lambda number, method, path: due.pop() if method == "GET" and due else None
    assert opened.read("events.jsonl") == b'{"event": 1}\n{"event": 2}\n'
    assert ["bytes came of" in facts["problem"] for _, facts in events] == [True]


def test_two_jobs_of_a_machine_download_the_same(store, tmp_path, opened):
    data = os.urandom(300_000)
    opened.write("file", data)
    stores = [ObjectStore(store.address) for _ in range(6)]
    threads = [
        threading.Thread(target=one.download, args=("file", tmp_path / "file", sha(data))) for one in stores
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
        ObjectStore(store.address, 50, clock=ManualClock()).read("x")


def environment(monkeypatch, port, **changes):
    for name, value in s3.environment(port, **changes).items():
        monkeypatch.setenv(name, value)


def without_secrets(text):
    assert s3.SECRET not in text and s3.KEY not in text
    assert s3.READER_SECRET not in text and s3.READER not in text
    assert "wrong-secret" not in text and "Signature=" not in text and s3.TOKEN not in text
    assert "\n" not in text
    return text


def test_a_wrong_secret(store, monkeypatch):
    environment(monkeypatch, store.proxy.port, secret="wrong-secret")
    with pytest.raises(StorageError) as caught:
        ObjectStore(store.address).check()
    assert "does not accept your key" in without_secrets(str(caught.value))


def test_a_wrong_token_of_google(google, monkeypatch):
    for name, value in google.proxy.environment("wrong-secret").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError) as caught:
        ObjectStore(google.address).check()
    assert "access is not allowed" in without_secrets(str(caught.value))


def test_an_absent_bucket_of_google(google):
    with pytest.raises(StorageError) as caught:
        ObjectStore("gs://nowhere/runs").check()
    assert "there is no such bucket" in without_secrets(str(caught.value))


def test_no_key_at_all(store, monkeypatch):
    """Neither variables nor a role of the machine, which is asked over the network."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{s3.free_ports(1)[0]}")
    monkeypatch.setattr(objects, "METADATA", (os.environ["AWS_METADATA_ENDPOINT"],))
    with pytest.raises(StorageError) as caught:
        ObjectStore(store.address).check()
    assert "there is no key" in without_secrets(str(caught.value))


def test_an_unknown_key(store, monkeypatch):
    environment(monkeypatch, store.proxy.port, key="AKNOBODY")
    with pytest.raises(StorageError) as caught:
        ObjectStore(store.address).write("x", b"")
    assert "does not accept your key" in without_secrets(str(caught.value))


def test_an_absent_bucket(store):
    for action in (ObjectStore.check, lambda one: one.read_json("x"), lambda one: one.names("x")):
        with pytest.raises(StorageError) as caught:
            action(ObjectStore("s3://nowhere/runs"))
        assert "there is no such bucket" in without_secrets(str(caught.value))


def test_a_bucket_that_may_only_be_read(store, opened, monkeypatch):
    opened.write("x", b"1")
    environment(monkeypatch, store.proxy.port, key=s3.READER, secret=s3.READER_SECRET)
    reader = ObjectStore(store.address)
    reader.check()
    assert reader.read("x") == b"1"
    for action in (reader.write, reader.create):
        with pytest.raises(StorageError) as caught:
            action("y", b"")
        assert "writing is not allowed" in without_secrets(str(caught.value))
