"""The live view as an application of its own."""

import time

import pytest
from starlette.testclient import TestClient

from atoll.runs import previews
from atoll.runs.records import RouterContents
from atoll.serve.view import View
from atoll.serve.watching import create_watch_app
from tests.serve.test_view import NOW, measure
from tests.serving import finish


@pytest.fixture
def run(prepared):
    run = prepared()
    measure(run, 0, 2, 4, ago=NOW - time.time(), gradient_norm=0.5)
    run.event("making", stages=["expert 0"])
    for step in range(100, 2100, 100):
        path = previews.path_of(run.expert(0).path, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\x89PNG %d" % step)
    return run


@pytest.fixture
def client(run):
    return TestClient(create_watch_app(View(run)))


def test_the_page_says_all_of_it(client):
    answer = client.get("/")
    assert answer.url.path == "/watch" and answer.status_code == 200
    for words in (
        "expert 0",
        "training",
        "4 / 10",
        "0.2500",
        "gradient norm",
        "run started",
        "of 4 jobs done",
    ):
        assert words in answer.text, words
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "Playground" not in answer.text, "there is none here"


def test_parts_come_only_when_they_have_changed(client, run):
    assert client.get("/watch/state").status_code == 200
    assert client.get("/watch/events?have=1").status_code == 204
    assert "run started" in client.get("/watch/events?have=0").text
    assert client.get("/watch/previews?have=20").status_code == 204
    assert client.get("/watch/curves?since=-1").json()["jobs"]["expert 0"]["step"] == [2, 4]
    version = client.get("/watch/curves").json()["version"]
    assert client.get(f"/watch/curves?since={version}").json()["jobs"] == {}


def test_previews_from_the_first_to_the_newest(client):
    text = client.get("/watch/previews").text
    assert text.count("<img") == 6 and "100.png" in text and "2000.png" in text
    assert client.get("/watch/previews/expert-0/2000.png").content == b"\x89PNG 2000"
    for address in ("expert-0/50.png", "expert-9/100.png", "..%2f..%2fx/1.png", "expert-0/x.png"):
        assert client.get(f"/watch/previews/{address}").status_code in (404, 422), address


def test_once_all_is_done_nobody_asks_any_more(finished):
    for name in ("samples", "report"):
        finish(finished.stage(name), RouterContents())
    (finished.path / "report" / "report.html").write_text("<!doctype html>the report")
    client = TestClient(create_watch_app(View(finished)))
    answer = client.get("/watch/state")
    assert answer.status_code == 286 and "/watch/report" in answer.text
    report = client.get("/watch/report")
    assert report.text == "<!doctype html>the report"
    assert "script-src" not in report.headers["content-security-policy"]


def test_before_there_is_a_report_that_is_told(client):
    assert client.get("/watch/report").status_code == 404


def test_the_door_is_that_of_the_server(run):
    closed = TestClient(create_watch_app(View(run), token="correct horse"))
    assert closed.get("/watch").status_code == 401
    here = TestClient(create_watch_app(View(run), hosts={"localhost"}))
    assert here.get("/watch").status_code == 421


def test_files_are_sent_once(client):
    answer = client.get("/static/watch.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/watch.js", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert client.get("/static/../view.py").status_code == 404
