"""Stages between machines: two folders that know each other only through the bucket."""

import itertools
import json
import time

import pytest

from atoll.config import RunConfig
from atoll.errors import CorruptError, StaleError, StorageError
from atoll.runs import Run, file_digest, previews, read_lines, write_json
from atoll.runs.records import Contents, ExpertContents, FewStepContents
from atoll.storage.leases import LeaseLost
from atoll.storage.mirror import Mirror


@pytest.fixture(params=["s3", "folder"])
def machine(request, tmp_path):
    """A machine of this name, with the run in its own folder and the store that all have in common."""
    (tmp_path / "mounted").mkdir()
    address = (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )

    def make(name):
        run = Run(tmp_path / name / "tiny", RunConfig(name="tiny"))
        run.path.mkdir(parents=True, exist_ok=True)
        return Mirror(run, f"{address}/tiny", patience=30)

    return make


def finished(run, index=0, made_from="x", **files):
    stage = run.expert(index)
    stage.begin({"data": made_from})
    for name, text in files.items():
        (stage.path / f"{name}.json").write_text(text)
    stage.finish({"data": made_from}, [f"{name}.json" for name in files], ExpertContents(steps=1))
    return stage


def test_a_stage_goes_there_and_comes_back(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12", config="3")
    (stage.path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert not b.download(b.run.expert(0))
    a.upload(stage)
    assert b.is_done(b.run.expert(0))
    assert b.download(b.run.expert(0))
    assert b.run.expert(0).record == stage.record
    assert b.run.expert(0).verify("weights.json").read_text() == "12"
    assert (b.run.expert(0).path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_previews_come_along_though_no_record_names_them(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12")
    picture = previews.path_of(stage.path, 1000)
    picture.parent.mkdir()
    picture.write_bytes(b"a picture")
    a.upload(stage)
    assert b.download(b.run.expert(0))
    assert [(step, path.read_bytes()) for step, path in previews.listed(b.run.expert(0).path)] == [
        (1000, b"a picture")
    ]


def test_the_record_alone_is_enough_to_know_what_is_there(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12")
    a.upload(stage)
    assert b.download_record(b.run.expert(0))
    assert b.run.expert(0).digest == stage.digest
    assert not (b.run.expert(0).path / "weights.json").exists()


def test_a_damaged_file_here_is_downloaded_again(machine):
    a, b = machine("a"), machine("b")
    a.upload(finished(a.run, weights="12"))
    b.download(b.run.expert(0))
    (b.run.expert(0).path / "weights.json").write_text("rot")
    b.download(b.run.expert(0))
    assert b.run.expert(0).verify("weights.json").read_text() == "12"


def test_a_damaged_file_there_is_never_taken(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12")
    a.upload(stage)
    (name,) = [name for name in a.store.names("experts/00") if "weights" in name]
    a.store.write(name, b"13")
    with pytest.raises(CorruptError, match="damaged"):
        b.download(b.run.expert(0))
    assert not b.run.expert(0).done


def test_the_first_to_finish_has_made_it(machine):
    """Two machines whose results differ in a bit: the second gives way, the first is not touched."""
    a, b = machine("a"), machine("b")
    first, second = finished(a.run, weights="12"), finished(b.run, weights="13")
    a.upload(first)
    b.upload(second)
    assert b.run.expert(0).record == first.record
    assert b.run.expert(0).verify("weights.json").read_text() == "12"
    c = machine("c")
    c.download(c.run.expert(0))
    assert c.run.expert(0).verify("weights.json").read_text() == "12"
    assert [line["event"] for line in read_lines(b.run.path / "events.jsonl")] == ["gave_way"]


def test_equal_results_do_not_quarrel(machine):
    a, b = machine("a"), machine("b")
    a.upload(finished(a.run, weights="12"))
    b.upload(finished(b.run, weights="12"))
    assert read_lines(b.run.path / "events.jsonl")[-1]["event"] == "uploaded"


def test_a_result_from_other_inputs_is_refused(machine):
    a, b = machine("a"), machine("b")
    a.upload(finished(a.run, weights="12"))
    with pytest.raises(StaleError, match="other inputs"):
        b.upload(finished(b.run, made_from="y", weights="12"))


def test_inner_stages_are_uploaded_first_and_downloaded_alone(machine):
    a, b = machine("a"), machine("b")
    partition = a.run.partition
    partition.begin({"data": "x"})
    for index in range(3):
        cluster = a.run.cluster(index)
        cluster.path.mkdir(parents=True)
        (cluster.path / "part-00000.parquet").write_text(f"rows of {index}")
        cluster.finish({"data": "x"}, ["part-00000.parquet"], Contents(rows=1))
    (partition.path / "rule.json").write_text("{}")
    partition.finish({"data": "x"}, ["rule.json"], Contents(sizes=[1, 1, 1]))
    a.upload(partition)
    assert b.download(b.run.cluster(1))
    assert [path.name for path in b.run.partition.path.iterdir()] == ["cluster-01"], "and nothing else"
    assert b.download(b.run.partition)
    assert b.download(b.run.cluster(0)) and b.download(b.run.cluster(2)), "nothing was tidied away"


def test_what_a_stage_only_links_to_is_not_uploaded_with_it(machine):
    """A student's folder has a link to the run's data, of which a machine may have only a part."""
    a = machine("a")
    data = a.run.data
    data.begin({"source": "s"})
    (data.path / "part-00000.parquet").write_text("rows")
    data.finish({"source": "s"}, ["part-00000.parquet"], Contents())
    (data.path / "part-00000.parquet").unlink()
    stage = finished(a.run, weights="12")
    (stage.path / "data").symlink_to(data.path)
    a.upload(stage)
    assert a.is_done(stage)
    assert not [name for name in a.store.names("experts/00") if "data" in name]


def test_start_over_throws_away_there_and_here(machine):
    a = machine("a")
    stage = finished(a.run, weights="12")
    a.upload(stage)
    a.clear(stage)
    assert a.store.names("experts/00") == ["experts/00/progress/00000001.json"], "a new attempt, and no more"
    assert not stage.path.exists()
    attempt = a.attempt(stage, a.leases.acquire("experts/00").token)
    a.upload(finished(a.run, weights="99"), attempt)
    assert a.is_done(stage)


def test_events_of_all_machines_come_together_once(machine, monkeypatch):
    a, b = machine("a"), machine("b")
    monkeypatch.setattr(time, "time", itertools.count(1.0).__next__)
    a.event("one", x=1)
    b.event("two", x=2)
    b.upload_events()
    a.gather_events()
    a.gather_events()
    assert [line["event"] for line in read_lines(a.run.path / "events.jsonl")] == ["one", "two"]
    assert len((a.store.read("events.jsonl") or b"").splitlines()) == 2


def test_what_goes_wrong_while_events_are_gathered_is_among_them(store, tmp_path):
    run = Run(tmp_path / "a" / "tiny", RunConfig(name="tiny"))
    mirror = Mirror(run, f"{store.address}/tiny", patience=30)
    mirror.event("one")
    mirror.upload_events()
    due = ["503", "503"]
    store.proxy.fault = lambda number, method, path: due.pop() if method in ("GET", "HEAD") and due else None
    mirror.gather_events()
    assert [line["event"] for line in read_lines(run.path / "events.jsonl")] == [
        "one",
        "store_fault",
        "store_fault",
    ]
    assert len((mirror.store.read("events.jsonl") or b"").splitlines()) == 3


def test_only_a_leader_says_what_the_run_is(machine):
    a, b = machine("a"), machine("b")
    write_json(a.run.path / "resolved.json", {"name": "a"})
    write_json(b.run.path / "resolved.json", {"name": "b"})
    a.open(lead=False)
    b.open(lead=False)
    assert a.store.read_json("resolved.json") == {"name": "a"}
    b.open(lead=True)
    assert a.store.read_json("resolved.json") == {"name": "b"}


def test_a_store_of_another_version_is_left_alone(machine):
    a = machine("a")
    a.store.write("store.json", b'{"schema": 99}')
    with pytest.raises(StorageError, match="another version"):
        a.open(lead=True)


@pytest.mark.parametrize("name", ["../../out.json", "/etc/passwd", ".ssh/key", "a\\b"])
def test_a_record_that_names_files_elsewhere_is_refused(machine, tmp_path, name):
    a, b = machine("a"), machine("b")
    a.upload(finished(a.run, weights="12"))
    done = a.store.read_json("experts/00/done.json")
    done["record"]["files"] = {name: done["record"]["files"]["weights.json"]}
    a.store.write("experts/00/done.json", json.dumps(done).encode())
    for action in (b.download, b.download_record):
        with pytest.raises(CorruptError, match="names a file"):
            action(b.run.expert(0))
    assert not (b.run.path / "experts").exists()


def test_the_step_that_a_stage_goes_on_from(machine):
    a, b = machine("a"), machine("b")
    stage = a.run.expert(0)
    assert b.saved_step(b.run.expert(0)) == 0
    attempt = a.attempt(stage, a.leases.acquire("experts/00").token)
    assert b.saved_step(b.run.expert(0)) == 0, "begun, and nothing saved"
    state = stage.path / "state" / "step-00000263.safetensors"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"a state")
    entry = {"step": 263, "file": state.name, "sha256": file_digest(state)}
    write_json(state.parent / "latest.json", {**entry, "older": []})
    attempt.upload()
    assert b.saved_step(b.run.expert(0)) == 263


def test_what_was_started_over_meanwhile_is_not_uploaded_as_finished(machine):
    a, b = machine("a"), machine("b")
    attempt = a.attempt(a.run.expert(0), a.leases.acquire("experts/00").token)
    stage = finished(a.run, weights="old")
    b.clear(b.run.expert(0))
    with pytest.raises(LeaseLost, match="started over"):
        a.upload(stage, attempt)
    assert not a.is_done(stage)


def before_creating(store, happens, monkeypatch):
    """Something happens just before a file is created there."""
    create = store.create

    def late(name, data):
        happens()
        return create(name, data)

    monkeypatch.setattr(store, "create", late)


def test_what_was_started_over_while_it_was_uploaded_is_taken_back(machine, monkeypatch):
    a, b = machine("a"), machine("b")
    attempt = a.attempt(a.run.expert(0), a.leases.acquire("experts/00").token)
    stage = finished(a.run, weights="old")
    before_creating(a.store, lambda: b.clear(b.run.expert(0)), monkeypatch)
    with pytest.raises(LeaseLost):
        a.upload(stage, attempt)
    assert not a.is_done(stage)


def test_a_finished_stage_of_an_earlier_attempt_does_not_count(machine):
    """Left by a machine that died before it could take it back."""
    a, b = machine("a"), machine("b")
    attempt = a.attempt(a.run.expert(0), a.leases.acquire("experts/00").token)
    a.upload(finished(a.run, weights="old"), attempt)
    old = a.store.read("experts/00/done.json")
    b.clear(b.run.expert(0))
    attempt = b.attempt(b.run.expert(0), b.leases.acquire("experts/00").token)
    a.store.write("experts/00/done.json", old)
    b.upload(finished(b.run, made_from="y", weights="new"), attempt)
    c = machine("c")
    assert c.download(c.run.expert(0))
    assert c.run.expert(0).verify("weights.json").read_text() == "new"


def test_a_late_finish_of_an_earlier_attempt_changes_nothing(machine, monkeypatch):
    """Started over and finished again elsewhere, all while the old result was on its way."""
    a, b = machine("a"), machine("b")
    attempt = a.attempt(a.run.expert(0), a.leases.acquire("experts/00").token)
    stage = finished(a.run, weights="old")

    def elsewhere():
        b.clear(b.run.expert(0))
        heir = b.attempt(b.run.expert(0), b.leases.acquire("experts/00").token)
        b.upload(finished(b.run, made_from="y", weights="new"), heir)

    before_creating(a.store, elsewhere, monkeypatch)
    with pytest.raises(LeaseLost, match="started over"):
        a.upload(stage, attempt)
    c = machine("c")
    assert c.download(c.run.expert(0))
    assert c.run.expert(0).verify("weights.json").read_text() == "new"


def test_done_carries_the_token_of_who_made_it(machine):
    a = machine("a")
    a.leases.revoke("experts/00")
    attempt = a.attempt(a.run.expert(0), a.leases.acquire("experts/00").token)
    a.upload(finished(a.run, weights="12"), attempt)
    assert a.store.read_json("experts/00/done.json")["token"] == 2


def test_clusters_that_were_uploaded_on_the_way_are_not_sent_again(machine):
    a = machine("a")
    partition, cluster = a.run.partition, a.run.cluster(0)
    attempt = a.attempt(partition, a.leases.acquire("partition").token)
    partition.begin({"data": "x"})
    cluster.path.mkdir()
    (cluster.path / "part-00000.parquet").write_text("rows")
    attempt.upload()
    cluster.finish({"data": "x"}, ["part-00000.parquet"], Contents())
    partition.finish({"data": "x"}, [], Contents())
    a.upload(partition, attempt)
    assert len([name for name in a.store.names("partition") if "parquet" in name]) == 1
    b = machine("b")
    assert b.download(b.run.cluster(0))
    assert (b.run.cluster(0).path / "part-00000.parquet").read_text() == "rows"


@pytest.mark.parametrize("rubbish", [b"[]", b"{}", b'{"attempt": "a"}', b"3"])
def test_a_damaged_record_in_a_store_is_named_and_nobody_is_told_to_delete_it(machine, rubbish):
    a = machine("a")
    a.store.write("experts/00/done.json", rubbish)
    with pytest.raises(CorruptError, match="experts/00/done.json is damaged.*--start-over") as caught:
        a.download_record(a.run.expert(0))
    assert "delete" not in str(caught.value)


def test_the_lessons_of_a_student_come_with_its_record(machine):
    """A few-step student is made of lessons, each a stage inside of it, of which later ones are made."""
    a, b = machine("a"), machine("b")
    student, lesson = a.run.stage("few-step"), a.run.stage("few-step", "lesson-00")
    for stage in (lesson, student):
        stage.begin({"data": "x"})
        (stage.path / "weights.json").write_text(stage.path.name)
        stage.finish({"data": "x"}, ["weights.json"], FewStepContents(steps=1, rows=1, taught_by=3))
    a.upload(student)
    assert b.download_record(b.run.stage("few-step"))
    assert b.run.stage("few-step", "lesson-00").record == lesson.record
    assert b.download(b.run.stage("few-step", "lesson-00"))
