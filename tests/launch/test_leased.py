"""Whole runs in a bucket, machine by machine, while the store fails and processes die."""

import contextlib
import os
import signal

import pytest
import torch

import atoll
from atoll.runs import Run, read_lines
from atoll.storage.cache import download_run
from atoll.storage.mirror import Mirror
from atoll.train import distil, jobs
from tests import s3
from tests.holding import held
from tests.machines import LONG, TRAINED, Machines, children, events, files_of, steps_uploaded, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def place(store, tiny, tmp_path):
    machines = Machines(store, tiny, tmp_path)
    yield machines
    machines.close()


def test_every_stage_on_another_machine_is_the_run_on_one(place, _tiny_finished):
    """Prepared on one machine, partitioned on another, an expert on a third, the rest by `atoll run`."""
    place.atoll("a", "prepare")
    place.atoll("b", "partition")
    assert not list((place.folder / "b" / "tiny").glob("experts/*"))
    place.store.proxy.reset()
    out, _ = place.atoll("c", "expert", "1")
    got = {path for method, path in place.store.proxy.requests if method == "GET" and "parquet" in path}
    assert got and all("/cluster-01/" in path for path in got), "and that is all it asked for"
    assert "experts/01" in out
    here = place.folder / "c" / "tiny"
    assert [path.name for path in (here / "partition").iterdir()] == ["cluster-01"], "its own cluster alone"
    assert not (here / "data").exists()
    out, err = place.atoll("d", "run")
    assert "expert 1" not in err, "what another machine has finished is not trained again"
    reference, run = Run.open(_tiny_finished), place.run("d")
    assert files_of(run) == files_of(reference), "bit for bit"
    assert run.partition.record.files == reference.partition.record.files
    assert "<!doctype html>" in (run.path / "report" / "report.html").read_text()
    there = Mirror.of(run).store.names()
    assert "samples/grid.png" in there and "report/report.html" in there and "events.jsonl" in there


@pytest.mark.thorough
def test_a_store_that_fails_in_every_way_changes_nothing(place, _tiny_finished):
    """Every third request fails, eight writes in a row are refused, objects come truncated."""
    place.seed(_tiny_finished)
    refused: list[str] = []
    cut = {"truncate": 0, "short": 0}

    def fault(number, method, path):
        if number % 3 == 0:
            return "503" if number % 2 else "drop"
        if number > 60 and method == "PUT" and len(refused) < 8:
            refused.append(path)
            return "503"
        if method == "GET" and "cluster-" in path and "parquet" in path:
            for how, already in cut.items():
                if already < 2:
                    cut[how] += 1
                    return how
        return None

    place.store.proxy.fault = fault
    place.atoll("a", "run")
    assert len(refused) == 8 > len({*refused}), "it came back several times"
    assert cut == {"truncate": 2, "short": 2}
    run = place.run("a")
    assert files_of(run) == files_of(Run.open(_tiny_finished))
    faults = [line for line in events(run) if line["event"] == "store_fault"]
    assert len(faults) >= place.store.proxy.faults, "each fault is named"
    problems = {line["problem"] for line in faults}
    assert {"HTTP 503", "the connection broke"} <= problems
    assert any("bytes came of" in problem for problem in problems)
    assert {"put", "create", "get", "list"} <= {line["operation"] for line in faults}
    leased = [line["what"] for line in events(run) if line["event"] == "leased"]
    assert sorted(leased) == sorted({*leased}), "nothing was done twice"


def test_a_machine_that_dies_loses_at_most_what_it_had_not_uploaded(place, _tiny_data, prepared):
    place.seed(_tiny_data, *LONG)
    mirror = Mirror.of(place.run("seed", *LONG))
    with held("expert-01", 25):
        first = place.start("a", "expert", "1", settings=LONG)
        wait_for(lambda: steps_uploaded(mirror, 1) >= 10, first)
        gone(first)
    uploaded = steps_uploaded(mirror, 1)
    _, err = place.atoll("b", "expert", "1", settings=LONG)
    assert f"going on from step {uploaded}" in err
    here = prepared(*LONG)
    jobs.expert(here, 1)
    there = place.run("b", *LONG)
    assert there.expert(1).record.files == here.expert(1).record.files, "bit for bit"
    said = [line["event"] for line in events(there)]
    assert "lost" in said, "the death is named"


def gone(process):
    """The whole machine is lost, not only the one process."""
    for pid in (process.pid, *children(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.thorough
def test_a_machine_does_not_go_on_from_what_was_started_over(place, _tiny_data, prepared):
    """Diverged on A, started over on B with another rate and lost there, retried on A: from B's state."""
    place.seed(_tiny_data, *LONG)
    mirror = Mirror.of(place.run("seed", *LONG))
    with held("expert-01", 35):
        first = place.start("a", "expert", "1", settings=[*LONG, "expert.lr=0.5"])
        wait_for(lambda: steps_uploaded(mirror, 1) == 30, first)
        gone(first)
    with held("expert-01", 25):
        second = place.start("b", "expert", "1", "--start-over", settings=LONG)
        wait_for(lambda: steps_uploaded(mirror, 1) == 20, second)  # what A had is cleared
        gone(second)
    _, err = place.atoll("a", "expert", "1", settings=LONG)
    assert "going on from step 20" in err
    here = prepared(*LONG)
    jobs.expert(here, 1)
    assert place.run("a", *LONG).expert(1).record.files == here.expert(1).record.files, "bit for bit"


def test_a_stop_uploads_and_is_taken_up_at_once(place, _tiny_data):
    place.seed(_tiny_data, *LONG)
    settings = [*LONG, "launch.lease=600", "expert.save_every=1000"]
    metrics = place.folder / "a" / "tiny" / "experts" / "00" / "metrics.jsonl"
    with held("expert-00", 5):
        first = place.start("a", "expert", "0", settings=settings)
        wait_for(lambda: len(read_lines(metrics)) > 3, first)
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=600)
    assert first.returncode == 75, err
    step = steps_uploaded(Mirror.of(place.run("seed", *LONG)), 0)
    assert step > 3
    _, err = place.atoll("b", "expert", "0", settings=settings)
    assert f"going on from step {step}" in err
    assert "waiting" not in err, "the lease was given back"


@pytest.mark.thorough
def test_two_drivers_of_the_same_run(place, _tiny_finished):
    drivers = [place.start(name, "run") for name in ("a", "b")]
    for driver in drivers:
        _, err = driver.communicate(timeout=600)
        assert driver.returncode == 0, err
    runs = [place.run(name) for name in ("a", "b")]
    Mirror.of(runs[0]).gather_events()
    said = events(runs[0])
    uploaded = [line["stage"] for line in said if line["event"] == "uploaded"]
    clusters = [f"partition/cluster-0{k}" for k in range(3)]
    trained = ["experts/00", "experts/01", "experts/02", "router"]
    assert sorted(uploaded) == sorted(["data", "partition", *clusters, *trained]), "each once"
    assert [line["what"] for line in said if line["event"] == "another"] == ["driver"], "it is named"
    assert "waiting" in [line["event"] for line in said]
    for run in runs:
        assert files_of(run) == files_of(Run.open(_tiny_finished))


@pytest.mark.thorough
def test_students_are_distilled_wherever_there_is_room(place, _tiny_finished, taught):
    """A dense student and a few-step one, on a machine that has the experts from the bucket alone."""
    settings = {"steps": 10, "batch": 8, "lr": 1e-2, "log_every": 2, "save_every": 3}
    few = {"steps": 4, "batch": 8, "method": "progressive", "grid": 4, "fewest": 1}
    here = taught(few=few)
    distil.distil(here)
    sets = [f"student.{key}={value}" for key, value in settings.items()]
    sets += [f"student.few.{key}={value}" for key, value in few.items()]
    place.seed(_tiny_finished, *sets, trained=TRAINED)
    place.atoll("a", "student", settings=sets)
    there = place.run("a", *sets)
    for stage in ("student", "few-step"):
        assert there.stage(stage).record.files == here.stage(stage).record.files, "bit for bit"
    images = atoll.load(download_run(f"{place.store.address}/tiny") / "few-step")
    assert torch.equal(
        images.sample(num=2, steps=1, seed=0), atoll.load(here.few_step.path).sample(num=2, steps=1, seed=0)
    )


def test_a_stop_is_heard_while_the_store_is_away(place, _tiny_data):
    """The training saves at once, though the files have to wait: time may be short."""
    place.seed(_tiny_data, *LONG)
    settings = [*LONG, "expert.steps=100000", "launch.patience=600"]
    first = place.start("a", "expert", "0", settings=settings)
    mirror = Mirror.of(place.run("seed", *LONG))
    wait_for(lambda: steps_uploaded(mirror, 0) >= 10, first)
    place.store.proxy.fault = lambda number, method, path: "503"
    refused = place.store.proxy.faults + 3
    wait_for(lambda: place.store.proxy.faults > refused, first)
    first.send_signal(signal.SIGTERM)
    wait_for(lambda: not children(first.pid), first)  # which ends long before the store's patience does
    place.store.proxy.reset()
    _, err = first.communicate(timeout=600)
    assert first.returncode == 75, err


@pytest.mark.thorough
def test_start_over_replaces_what_is_there(place, _tiny_data):
    place.seed(_tiny_data)
    place.atoll("a", "expert", "0")
    before = place.run("a").expert(0).record.made_from
    other = ["expert.lr=0.5"]
    _, err = place.atoll("b", "expert", "0", settings=other, code=1)
    assert "other settings" in err and "--start-over" in err
    assert len(err.strip().splitlines()) == 1
    place.atoll("b", "expert", "0", "--start-over", settings=other)
    assert place.run("b").expert(0).record.made_from != before


def one_line(err):
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("atoll: ")
    without_secrets(err)
    return lines[0]


def without_secrets(err):
    for secret in (s3.SECRET, s3.KEY, s3.READER, s3.READER_SECRET, "wrong-secret", "Signature"):
        assert secret not in err


def test_mistakes_with_the_store_are_one_line_each(place, _tiny_data):
    place.seed(_tiny_data)
    command = ("expert", "0")
    _, err = place.atoll("a", *command, code=1, AWS_SECRET_ACCESS_KEY="wrong-secret")
    assert "does not accept your key" in one_line(err)
    _, err = place.atoll("a", *command, code=1, settings=["launch.store=s3://nowhere/x"])
    assert "no such bucket" in one_line(err)
    reader = {"AWS_ACCESS_KEY_ID": s3.READER, "AWS_SECRET_ACCESS_KEY": s3.READER_SECRET}
    _, err = place.atoll("a", *command, code=1, **reader)
    assert "writing is not allowed" in one_line(err)
    _, err = place.atoll("a", "run", code=1, **reader)
    assert "writing is not allowed" in one_line(err)
    _, err = place.atoll("a", "run", code=1, settings=["launch.store=/not/mounted"])
    assert "there is no such folder" in one_line(err)
    _, err = place.atoll("a", "--debug", *command, code=1, AWS_SECRET_ACCESS_KEY="wrong-secret")
    without_secrets(err)
    _, err = place.atoll("a", "expert", "7", code=1)
    assert "there is no expert 7" in one_line(err)
    _, err = place.atoll("a", "run", "--on", "moon", code=1)
    assert "local, ray, slurm" in one_line(err)
    assert not (place.folder / "a" / "tiny" / "experts").exists()


def test_an_expert_without_a_partition_says_what_is_missing(place):
    _, err = place.atoll("a", "expert", "0", code=1)
    assert "partition/cluster-00 is not finished" in one_line(err)


def test_no_credentials_anywhere(place, _tiny_data):
    """Not in the run's folder, nor in the bucket, nor in what was said."""
    place.seed(_tiny_data)
    place.store.proxy.fault = lambda number, method, path: "503" if number % 3 == 0 else None
    out, err = place.atoll("a", "--debug", "expert", "0")
    place.store.proxy.reset()
    mirror = Mirror.of(place.run("a"))
    said = [out.encode(), err.encode()]
    said += [path.read_bytes() for path in (place.folder / "a").rglob("*") if path.is_file()]
    said += [mirror.store.read(name) or b"" for name in mirror.store.names()]
    assert len(said) > 10
    for secret in (s3.SECRET, s3.KEY):
        assert not [text for text in said if secret.encode() in text]
