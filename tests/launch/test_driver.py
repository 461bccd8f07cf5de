"""A run is walked stage by stage: what is done stays, what is stale is named before it is made again."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from atoll.config import RunConfig
from atoll.errors import ConfigError, Interrupted, StaleError
from atoll.launch import driver
from atoll.launch.driver import Screen
from atoll.runs import Run, graph, read_lines

QUICK = ["expert.steps=1", "router.steps=1", "sample.steps=1", "sample.num=2"]


def quiet():
    return Screen(lambda: contextlib.nullcontext(lambda statuses: None), lambda: contextlib.nullcontext(None))


def files(folder):
    """Every file with its bytes and the time of its last change."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def changed(run, **sections):
    parts = {name: getattr(run.config, name).model_copy(update=changes) for name, changes in sections.items()}
    return Run(run.path, run.config.model_copy(update=parts))


def under(found, *folders):
    return {name: facts for name, facts in found.items() if name.startswith(folders)}


@pytest.fixture(scope="module")
def _driven(_tiny_data, tmp_path_factory):
    """A whole run, made once."""
    from atoll import config

    folder = tmp_path_factory.mktemp("driven") / "tiny"
    settings = config.load(_tiny_data / "run.toml", QUICK)
    run = Run(folder, settings)
    folder.mkdir()
    (folder / "run.toml").write_bytes((_tiny_data / "run.toml").read_bytes())
    text = json.dumps({"version": 1, **settings.model_dump(mode="json")}, indent=2) + "\n"
    (folder / "resolved.json").write_text(text)
    for stage in ("data", "partition"):
        (folder / stage).symlink_to(_tiny_data / stage)
    driver.drive(run, "local", quiet())
    return run


@pytest.fixture
def driven(_driven, tmp_path):
    """A copy of it, data and clusters as links."""
    folder = tmp_path / "runs" / "tiny"
    folder.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", str(_driven.path), str(folder)], check=True)
    return Run(folder, _driven.config)


@pytest.mark.thorough
def test_another_router_is_made_again_with_what_follows_and_nothing_else(driven, caplog):
    """It is said before anything is started; experts, data and clusters are not touched."""
    before = files(driven.path)
    other = changed(driven, router={"steps": 2})
    with pytest.raises(StaleError) as refused:
        driver.drive(other, "local", quiet())
    said = str(refused.value)
    assert (
        "router was made with other settings; add --start-over to make router, samples, report again" in said
    )
    assert "experts 0 to 2 would stay" in said
    assert files(driven.path) == before, "nothing was begun"
    caplog.set_level("INFO")
    driver.drive(other, "local", quiet(), start_over=True)
    kept = ("experts/", "data/", "partition/")
    assert under(files(driven.path), *kept) == under(before, *kept)
    assert caplog.messages[0].startswith("Making again: router, samples, report (staying as they are: data,")
    assert other.router.contents.steps == 2


@pytest.mark.thorough
def test_starting_over_again_makes_nothing_again(driven):
    """Whoever was interrupted gives the same command again."""
    other = changed(driven, router={"steps": 2})
    driver.drive(other, "local", quiet(), start_over=True)
    before = files(driven.path)
    driver.drive(other, "local", quiet(), start_over=True)
    assert files(driven.path) == before


def test_other_samples_are_drawn_without_asking(driven):
    before = files(driven.path)
    other = changed(driven, sample={"num": 3})
    driver.drive(other, "local", quiet())
    assert len(other.stage("samples").contents.facts()["experts"]) == 3
    trained = ("experts/", "router/")
    assert under(files(driven.path), *trained) == under(before, *trained)


def test_a_job_knows_the_step_that_it_goes_on_from(tmp_path):
    [job] = driver.jobs_of([graph.node(Run(tmp_path, RunConfig(name="a")), "expert 0")])
    assert job.saved_step() == 0
    (job.folder / "state").mkdir(parents=True)
    (job.folder / "state" / "latest.json").write_text(
        '{"step": 263, "file": "a", "sha256": "b", "older": []}'
    )
    assert job.saved_step() == 263


COUNTED = """
import sys
sys.argv = ["atoll", *sys.argv[1:]]
try:
    from atoll.cli import main
    main()
finally:
    print(sorted({"torch", "numpy", "pyarrow", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_finished_run_is_only_looked_at(driven, tmp_path):
    """Records alone are read: nothing that computes or draws is loaded, and every file stays as it is."""
    recipe = driven.path / "run.toml"
    sets = [part for text in QUICK for part in ("--set", text)]
    before = files(driven.path)
    command = [sys.executable, "-c", COUNTED, "run", str(recipe), *sets, "--json"]
    environment = {**os.environ, "ATOLL_RUNS": str(driven.path.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"
    assert files(driven.path) == before
    assert json.loads(done.stdout)["report"].endswith("report.html")


def test_an_expert_elsewhere_is_brought_in_first(driven, tmp_path):
    """Whoever trains one expert alone brings what it begins with into the run."""
    other = changed(driven, expert={"init": str(driven.expert(0).path), "steps": 1})
    run = Run(tmp_path / "runs" / "other", other.config.model_copy(update={"name": "other"}))
    run.path.mkdir(parents=True)
    (run.path / "partition").symlink_to((driven.path / "partition").resolve())
    driver.make(run, graph.of_command(run, "expert", 1), quiet())
    assert run.stage("init", "00").digest == driven.expert(0).digest
    assert run.expert(1).record.made_from["init"] == driven.expert(0).digest


def test_what_became_of_jobs_is_written_down(driven):
    lines = read_lines(driven.path / "events.jsonl")
    assert (lines[0]["event"], lines[-1]["event"]) == ("making", "finished")
    done = {line["stage"] for line in lines if line["event"] == "done"}
    assert done == {"router", "expert 0", "expert 1", "expert 2"}


@pytest.mark.parametrize(("error", "event"), [(ConfigError, "failed"), (Interrupted, "interrupted")])
def test_why_it_ended_early_is_written_down(prepared, error, event):
    run = prepared()

    def make():
        raise error("for a reason")

    with pytest.raises(error):
        driver._noted(run, make)
    (line,) = read_lines(run.path / "events.jsonl")
    assert (line["event"], line["problem"]) == (event, "for a reason")


@pytest.mark.parametrize("key", ["expert.init", "expert.adapter.base"])
def test_an_expert_that_is_not_there_is_told_before_the_data_are_read(_tiny_data, tmp_path, key):
    from atoll import config

    run = Run(
        tmp_path / "tiny", config.load(_tiny_data / "run.toml", [*QUICK, f"{key}='{tmp_path}/nowhere'"])
    )
    run.path.mkdir()
    with pytest.raises(ConfigError, match="nowhere' holds no finished expert"):
        driver.drive(run, "local", quiet())
    assert not run.data.path.exists()
