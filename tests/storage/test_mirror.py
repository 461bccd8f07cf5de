"""Stages between machines: two folders that know each other only through the bucket."""

import json
import time

import pytest
import torch

import atoll
from atoll.config import RunConfig
from atoll.errors import CorruptError, RunError, StaleError
from atoll.runs import Run, file_digest, read_json, read_lines, write_json
from atoll.storage import mirror as room
from atoll.storage.mirror import Mirror, keyed


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
        return Mirror(run, address, patience=30)

    return make


def finished(run, index=0, made_from="x", **files):
    stage = run.expert(index)
    stage.begin({"data": made_from})
    for name, text in files.items():
        (stage.path / f"{name}.json").write_text(text)
    stage.finish({"data": made_from}, [f"{name}.json" for name in files], {"steps": 1})
    return stage


def test_a_stage_goes_there_and_comes_back(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12", config="3")
    (stage.path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert not b.fetch(b.run.expert(0))
    a.hand_in(stage)
    assert b.is_done(b.run.expert(0))
    assert b.fetch(b.run.expert(0))
    assert b.run.expert(0).record == stage.record
    assert b.run.expert(0).verify("weights.json").read_text() == "12"
    assert (b.run.expert(0).path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_the_record_alone_is_enough_to_know_what_is_there(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12")
    a.hand_in(stage)
    assert b.fetch_record(b.run.expert(0))
    assert b.run.expert(0).digest == stage.digest
    assert not (b.run.expert(0).path / "weights.json").exists()


def test_a_damaged_file_here_is_fetched_again(machine):
    a, b = machine("a"), machine("b")
    a.hand_in(finished(a.run, weights="12"))
    b.fetch(b.run.expert(0))
    (b.run.expert(0).path / "weights.json").write_text("rot")
    b.fetch(b.run.expert(0))
    assert b.run.expert(0).verify("weights.json").read_text() == "12"


def test_a_damaged_file_there_is_never_taken(machine):
    a, b = machine("a"), machine("b")
    stage = finished(a.run, weights="12")
    a.hand_in(stage)
    a.store.write(f"experts/00/{keyed('weights.json', stage.record['files']['weights.json'])}", b"13")
    with pytest.raises(CorruptError, match="damaged"):
        b.fetch(b.run.expert(0))
    assert not b.run.expert(0).done


def test_the_first_to_finish_has_made_it(machine):
    """Two machines whose results differ in a bit: the second gives way, the first is not touched."""
    a, b = machine("a"), machine("b")
    first, second = finished(a.run, weights="12"), finished(b.run, weights="13")
    a.hand_in(first)
    b.hand_in(second)
    assert b.run.expert(0).record == first.record
    assert b.run.expert(0).verify("weights.json").read_text() == "12"
    c = machine("c")
    c.fetch(c.run.expert(0))
    assert c.run.expert(0).verify("weights.json").read_text() == "12"
    assert [line["event"] for line in read_lines(b.run.path / "events.jsonl")] == ["gave_way"]


def test_equal_results_do_not_quarrel(machine):
    a, b = machine("a"), machine("b")
    a.hand_in(finished(a.run, weights="12"))
    b.hand_in(finished(b.run, weights="12"))
    assert read_lines(b.run.path / "events.jsonl")[-1]["event"] == "handed_in"


def test_a_result_from_other_inputs_is_refused(machine):
    a, b = machine("a"), machine("b")
    a.hand_in(finished(a.run, weights="12"))
    with pytest.raises(StaleError, match="other inputs"):
        b.hand_in(finished(b.run, made_from="y", weights="12"))


def state(folder, step, content, keep=()):
    """A state of training, as the loop leaves it."""
    folder = folder / "state"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("step-*"):
        if path.name not in keep:
            path.unlink()
    name = f"step-{step:08d}.safetensors"
    (folder / name).write_text(content)
    write_json(folder / "latest.json", {"step": step, "file": name, "sha256": file_digest(folder / name)})
    write_json(folder / "decisions.json", {"compile": False})


def test_another_machine_goes_on_from_the_last_state(machine):
    a, b = machine("a"), machine("b")
    stage = a.run.expert(0)
    stage.begin({"data": "x"})
    for step in (3, 6):
        state(stage.path, step, f"state {step}")
        (stage.path / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
        a.hand_in_progress(stage)
    other = b.run.expert(0)
    b.fetch_progress(other)
    pointer = read_json(other.path / "state" / "latest.json")
    assert pointer["step"] == 6
    assert (other.path / "state" / pointer["file"]).read_text() == "state 6"
    assert read_json(other.path / "state" / "decisions.json") == {"compile": False}
    assert read_lines(other.path / "metrics.jsonl") == [{"step": 6}]
    assert other.begin({"data": "x"})
    with pytest.raises(StaleError):
        other.begin({"data": "y"})
    kept = [name for name in a.store.names("experts/00/state") if name.endswith(".safetensors")]
    assert len(kept) == 1, "old states are removed"


def test_a_newer_state_here_is_kept(machine):
    a, b = machine("a"), machine("b")
    state(a.run.expert(0).path, 3, "theirs")
    a.hand_in_progress(a.run.expert(0))
    state(b.run.expert(0).path, 9, "ours")
    b.fetch_progress(b.run.expert(0))
    assert read_json(b.run.expert(0).path / "state" / "latest.json")["step"] == 9


def test_a_state_that_vanishes_while_it_is_sent_is_left_for_next_time(machine):
    a = machine("a")
    state(a.run.expert(0).path, 3, "gone")
    next((a.run.expert(0).path / "state").glob("step-*")).unlink()
    a.hand_in_progress(a.run.expert(0))
    assert a.store.read("experts/00/state/latest.json") is None


def test_finished_parts_of_an_unfinished_stage_are_not_made_again(machine):
    a, b = machine("a"), machine("b")
    stage = a.run.data
    stage.begin({"source": "s"})
    (stage.path / "part-00000.parquet").write_text("rows")
    (stage.path / "features-00000.npy").write_text("features")
    (stage.path / ".part-00001.parquet.7.partial").write_text("half")
    a.hand_in_progress(stage)
    b.fetch_progress(b.run.data)
    assert sorted(path.name for path in b.run.data.path.iterdir()) == [
        "features-00000.npy",
        "part-00000.parquet",
        "started.json",
    ]
    stage.finish({"source": "s"}, ["part-00000.parquet"], {})
    a.hand_in(stage)
    assert not [name for name in a.store.names("data") if "features" in name or "started" in name], "tidied"


def test_inner_stages_are_handed_in_first_and_fetched_alone(machine):
    a, b = machine("a"), machine("b")
    partition = a.run.partition
    partition.begin({"data": "x"})
    for index in range(3):
        cluster = a.run.cluster(index)
        cluster.path.mkdir(parents=True)
        (cluster.path / "part-00000.parquet").write_text(f"rows of {index}")
        cluster.finish({"data": "x"}, ["part-00000.parquet"], {"rows": 1})
    (partition.path / "rule.json").write_text("{}")
    partition.finish({"data": "x"}, ["rule.json"], {"sizes": [1, 1, 1]})
    a.hand_in(partition)
    assert b.fetch(b.run.cluster(1))
    assert [path.name for path in b.run.partition.path.iterdir()] == ["cluster-01"], "and nothing else"
    assert b.fetch(b.run.partition)
    assert b.fetch(b.run.cluster(0)) and b.fetch(b.run.cluster(2)), "nothing was tidied away"


def test_what_a_stage_only_links_to_is_not_handed_in_with_it(machine):
    """A student's folder has a link to the run's data, of which a machine may have only a part."""
    a = machine("a")
    data = a.run.data
    data.begin({"source": "s"})
    (data.path / "part-00000.parquet").write_text("rows")
    data.finish({"source": "s"}, ["part-00000.parquet"], {})
    (data.path / "part-00000.parquet").unlink()
    stage = finished(a.run, weights="12")
    (stage.path / "data").symlink_to(data.path)
    a.hand_in(stage)
    assert a.is_done(stage)
    assert not [name for name in a.store.names("experts/00") if "data" in name]


def test_start_over_throws_away_there_and_here(machine):
    a = machine("a")
    stage = finished(a.run, weights="12")
    a.hand_in(stage)
    a.clear(stage)
    assert a.store.names("experts/00") == {}
    assert not stage.path.exists()
    a.hand_in(finished(a.run, weights="99"))
    assert a.is_done(stage)


def test_events_of_all_machines_come_together_once(machine):
    a, b = machine("a"), machine("b")
    a.event("one", x=1)
    time.sleep(0.01)
    b.event("two", x=2)
    b.hand_in_events()
    a.gather_events()
    a.gather_events()
    assert [line["event"] for line in read_lines(a.run.path / "events.jsonl")] == ["one", "two"]
    assert len((a.store.read("events.jsonl") or b"").splitlines()) == 2


def test_what_goes_wrong_while_events_are_gathered_is_among_them(store, tmp_path):
    run = Run(tmp_path / "a" / "tiny", RunConfig(name="tiny"))
    mirror = Mirror(run, store.address, patience=30)
    mirror.event("one")
    mirror.hand_in_events()
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


def test_no_run_at_an_address(store, tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        room.fetch_run(f"{store.address}/nothing", tmp_path)


def test_a_run_in_a_bucket_is_sampled_as_one_in_a_folder(finished, store, tmp_path, monkeypatch):
    """From the address alone, without samples at rest, bit for bit."""
    mirror = Mirror(finished, store.address, 30)
    mirror.open(lead=True)
    for stage in (finished.partition, *(finished.expert(k) for k in range(3)), finished.router):
        mirror.hand_in(stage)
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "laptop"))
    there = atoll.load(f"{store.address}/{finished.config.name}").sample(num=3, steps=2, seed=1)
    here = atoll.load(finished.path).sample(num=3, steps=2, seed=1)
    assert torch.equal(there, here)
    assert not list((tmp_path / "laptop").rglob("*.parquet")), "no samples at rest were fetched"
