"""Runs by their address: in a bucket, in a mounted folder, under any name."""

import json

import pytest
import torch

import atoll
from atoll.cli import results  # noqa: F401 - it adds its commands to the app
from atoll.cli.options import app
from atoll.errors import CorruptError, RunError
from atoll.runs import Run, read_json
from atoll.storage import cache
from atoll.storage.mirror import Mirror


@pytest.fixture(params=["s3", "folder"])
def place(request, tmp_path):
    (tmp_path / "mounted").mkdir()
    return (
        str(tmp_path / "mounted") if request.param == "folder" else request.getfixturevalue("store").address
    )


@pytest.fixture
def uploaded(finished, place):
    """A finished run in a store, with its samples; its address."""

    def make(name="tiny"):
        address = f"{place}/{name}"
        mirror = Mirror(finished, address, 30)
        mirror.open(lead=True)
        stages = (finished.data, finished.partition, *(finished.expert(k) for k in range(3)), finished.router)
        for stage in stages:
            mirror.upload(stage)
        return address

    return make


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ATOLL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache.cache_folder() == tmp_path / "caches" / "atoll"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "atoll"


def test_every_address_has_a_folder_of_its_own(monkeypatch):
    one = cache.cached("s3://a/fashion")
    assert one.name == "fashion"
    assert one != cache.cached("s3://b/fashion")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere")
    assert one != cache.cached("s3://a/fashion"), "the same name on another server"


def test_a_run_in_a_store_is_sampled_as_one_in_a_folder(finished, uploaded, tmp_path):
    """From the address alone, without samples at rest, bit for bit."""
    there = atoll.load(uploaded()).sample(num=3, steps=2, seed=1)
    here = atoll.load(finished.path).sample(num=3, steps=2, seed=1)
    assert torch.equal(there, here)
    assert not list(cache.cache_folder().rglob("*.parquet")), "no samples at rest were downloaded"


def test_an_unrelated_run_here_is_left_alone(uploaded, tmp_path):
    own = tmp_path / "runs" / "fashion"
    own.mkdir(parents=True)
    (own / "resolved.json").write_text('{"name": "mine"}')
    before = {path: path.read_bytes() for path in own.rglob("*")}
    atoll.load(uploaded("fashion"))
    assert {path: path.read_bytes() for path in own.rglob("*")} == before
    assert cache.cache_folder() in cache.download_run(uploaded("fashion")).parents


def test_a_renamed_run_reads_its_own_prefix(uploaded, place, finished):
    """The name in the address decides, not the one in the recipe, under which there may be another run."""
    address = uploaded("renamed")
    other = Mirror(finished, f"{place}/{finished.config.name}", 30)
    other.open(lead=True)
    other.store.write("partition/done.json", b'{"rubbish": 1}')
    run = Run.open(cache.download_run(address))
    assert run.config.name == finished.config.name
    assert run.router.record == finished.router.record


def test_a_run_that_was_started_over_is_downloaded_anew(uploaded, finished):
    address = uploaded()
    path = cache.download_run(address)
    mirror = Mirror(finished, address, 30)
    done = mirror.store.read_json("router/done.json")
    done["record"]["contents"]["steps"] = 99
    mirror.store.write("router/done.json", json.dumps(done).encode())
    cache.download_run(address)
    assert read_json(path / "router" / "done.json")["contents"]["steps"] == 99


def test_the_samples_come_along_if_they_are_wanted(uploaded, finished):
    run = Run.open(cache.download_run(uploaded(), samples=True))
    for stage in (run.data, run.cluster(2)):
        assert stage.here
    assert run.data.record == finished.data.record


def test_no_run_at_an_address(place):
    with pytest.raises(RunError, match="is not a run"):
        cache.download_run(f"{place}/nothing")


def test_a_mounted_folder_says_that_it_is_a_store(uploaded, finished, tmp_path):
    address = uploaded()
    assert cache.store_address(address) == address
    assert cache.store_address(finished.path) is None
    assert cache.store_address(tmp_path / "never") is None


def test_what_is_damaged_there_is_not_to_be_deleted(uploaded, place):
    address = uploaded()
    mirror = Mirror(Run.open(cache.download_run(address)), address, 30)
    (name,) = [one for one in mirror.store.names("router") if "weights" in one]
    mirror.store.write(name, b"rot")
    (mirror.run.router.path / "weights.safetensors").unlink()
    with pytest.raises(CorruptError, match="--start-over") as caught:
        cache.download_run(address)
    assert "delete" not in str(caught.value)


def test_commands_take_the_path_of_a_mounted_store(finished, tmp_path, monkeypatch, capsys):
    """Sampled, evaluated and exported as a run's own folder would be; nothing in it changes."""
    (tmp_path / "mounted").mkdir()
    folder = tmp_path / "mounted" / "tiny"
    mirror = Mirror(finished, str(folder), 30)
    mirror.open(lead=True)
    stages = (finished.data, finished.partition, *(finished.expert(k) for k in range(3)), finished.router)
    for stage in stages:
        mirror.upload(stage)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    small = ["evaluate.num=8", "evaluate.reference=64", 'evaluate.features=["pixels"]', "evaluate.routing=0"]
    for command in (
        ["sample", str(folder), "--num", "2", "--steps", "2"],
        ["evaluate", str(folder), *(part for text in small for part in ("--set", text))],
        ["export", str(folder), str(tmp_path / "exported")],
    ):
        with pytest.raises(SystemExit) as ended:
            app(command)
        assert ended.value.code in (0, None), capsys.readouterr().err
    assert (tmp_path / "samples").is_dir() and (tmp_path / "exported" / "model_index.json").is_file()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
