"""A whole study through the driver, on another engine than this machine's processes."""

import contextlib
from pathlib import Path

import pytest

from atoll.errors import ConfigError
from atoll.launch import driver
from atoll.launch.driver import Screen
from atoll.runs import read_json
from atoll.runs.graph import resolve
from atoll.study import cells as room
from atoll.study import design, driving
from atoll.study.cells import Workshop
from tests.beforehand import TINY
from tests.study.test_cells import STUDY

ELSEWHERE = {"ray": "atoll.launch.on_ray:OnRay", "slurm": "atoll.launch.on_slurm:OnSlurm"}


def quiet():
    return Screen(lambda: contextlib.nullcontext(lambda statuses: None), lambda: contextlib.nullcontext(None))


def study_of(folder, *settings):
    (folder / "tiny.toml").write_text(TINY)
    (folder / "study.toml").write_text(STUDY)
    small = ["axes.seed=[0]", "budget.samples=[150]", "evaluate.routing=0", 'evaluate.features=["pixels"]']
    return design.load(folder / "study.toml", [*small, 'axes.sample.strategy=["top-1"]', *settings])


def test_an_engine_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="jobs can run on local, ray, slurm"):
        driving.drive(study_of(tmp_path), "moon", quiet())


@pytest.mark.slow
@pytest.mark.parametrize("on", ["slurm", "ray"])  # on this machine: test_cells
@pytest.mark.thorough
def test_a_study_runs_on_every_engine(tmp_path, request, monkeypatch, on):
    study = study_of(tmp_path, 'launch.slurm={cluster="local"}', "launch.gpus=0")
    engine = resolve(ELSEWHERE[on])
    start, jobs = engine.start, list[str]()

    def noted(self, job):
        jobs.append(job.name)
        start(self, job)

    monkeypatch.setattr(engine, "start", noted)
    request.getfixturevalue("ray" if on == "ray" else "_forge")
    written = driving.drive(study, on, quiet())
    again = driving.drive(study, on, quiet())
    assert written["finished"] == written["cells"] == again["finished"] == 2
    assert len(jobs) == 2, "every training once, on the engine that was asked for"


@pytest.mark.slow
@pytest.mark.thorough
def test_both_sides_are_tuned_by_workers_that_know_only_what_a_job_says(tmp_path, monkeypatch):
    """Jobs are done here, each from its own specification alone, as a worker would."""
    names = list[str]()

    def here(jobs, engine, watch):
        for job in sorted(jobs, key=lambda job: len(job.after)):
            names.append(job.name)
            path = tmp_path / f"{job.spec.stage}.json"
            path.write_text(job.spec.resolved)
            shop = Workshop(design.Study.read(path))
            room.work(shop, shop.cells(), job.spec.stage)

    monkeypatch.setattr(driver, "run_jobs", here)
    small = ["tune.batch=[4, 8]", "tune.lr=[1e-2]", "tune.num=16", "tune.rungs=1", "evaluate.num=16"]
    study = study_of(tmp_path, *small, "budget.start=[0.3]", "budget.samples=[400]")
    written = driving.drive(study, "local", quiet())
    assert written["finished"] == written["cells"] == 2
    sides = {record["side"]: record for record in written["tuning"]}
    assert {len(record["tried"]) for record in sides.values()} == {2}
    rows = {row["monolith"]: row for row in read_json(Path(written["table"]).with_name("study.json"))["rows"]}
    assert rows[True]["batch"] == sides["monolith"]["batch"]
    assert rows[False]["batch"] == sides["experts"]["batch"]
    assert len(names) == len(set(names)) == 2 + 1 + 2, "two trials a side with a start; who wins is trained"
