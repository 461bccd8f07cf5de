"""The same history from a folder and over HTTP."""

import http.server
import threading

import pytest

from atoll.errors import ConfigError, StorageError
from atoll.net.sources import HttpSource, open_source
from tests.net.past import honest, sha


@pytest.fixture
def folder(tmp_path):
    """A store's folder with a history in it."""
    past = honest().publish()
    for name, data in {f"log/{name}": data for name, data in past.files.items()}.items():
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_bytes(data)
    (tmp_path / "store" / "sha256").mkdir()
    for digest, data in past.artifacts.items():
        (tmp_path / "store" / "sha256" / digest).write_bytes(data)
    return tmp_path / "store"


@pytest.fixture
def url(folder):
    """The same over HTTP, as a coordinator serves it."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(folder / path.lstrip("/").replace("v1/files/", "sha256/"))

        def log_message(self, *_) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_files_come_from_a_folder_and_over_http_alike(kind, request, tmp_path):
    source = open_source(str(request.getfixturevalue(kind)))
    assert source.log("checkpoint") == honest().publish().files["checkpoint"]
    assert source.log("tile/9/000") is None
    assert source.digest(sha("state 1")) == (sha("state 1"), 7)
    assert source.digest(sha("nothing")) is None
    assert source.save(sha("state 1"), tmp_path / "there" / "file")
    assert (tmp_path / "there" / "file").read_text() == "state 1"
    assert not source.save(sha("nothing"), tmp_path / "other")


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_a_file_that_is_not_what_it_is_called_is_found_out(kind, folder, request, tmp_path):
    source = open_source(str(request.getfixturevalue(kind)))
    (folder / "sha256" / sha("state 1")).write_bytes(b"another")
    assert source.digest(sha("state 1")) == (sha("another"), 7)
    assert not source.save(sha("state 1"), tmp_path / "file")


def test_nobody_there_is_said_in_words(tmp_path):
    with pytest.raises(StorageError, match="does not answer"):
        HttpSource("http://127.0.0.1:9").log("checkpoint")
    with pytest.raises(ConfigError, match="has no log in it"):
        open_source(str(tmp_path))
