"""A whole study through the driver, on another engine than this machine's processes."""

import contextlib

import pytest

from atoll.errors import ConfigError
from atoll.launch.driver import Screen
from atoll.runs.graph import resolve
from atoll.study import design, driving
from tests.conftest import TINY
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
@pytest.mark.parametrize("on", ["local", "slurm", "ray"])
def test_a_study_runs_on_every_engine(tmp_path, request, monkeypatch, on):
    study = study_of(tmp_path, 'launch.slurm={cluster="local"}', "launch.gpus=0")
    engine = resolve({"local": "atoll.launch.local:Local", **ELSEWHERE}[on])
    start, jobs = engine.start, list[str]()

    def noted(self, job):
        jobs.append(job.name)
        start(self, job)

    monkeypatch.setattr(engine, "start", noted)
    if on == "ray":
        request.getfixturevalue("ray")
    written = driving.drive(study, on, quiet())
    again = driving.drive(study, on, quiet())
    assert written["finished"] == written["cells"] == again["finished"] == 2
    assert len(jobs) == 2, "every training once, on the engine that was asked for"
