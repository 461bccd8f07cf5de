"""A whole study through the driver, on another engine than this machine's processes."""

import contextlib

import pytest

from atoll.errors import ConfigError
from atoll.launch.driver import Screen
from atoll.study import design, driving
from tests.conftest import TINY
from tests.study.test_cells import STUDY


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
def test_a_study_runs_on_every_engine(tmp_path, monkeypatch, on):
    monkeypatch.setenv("ATOLL_SCRATCH", str(tmp_path / "scratch"))
    study = study_of(tmp_path, 'launch.slurm={cluster="local"}', "launch.gpus=0")
    if on == "ray":
        from atoll.launch import on_ray

        memory = {"object_store_memory": 80 * 10**6, "include_dashboard": False}
        on_ray.library().init(address="local", num_cpus=2, log_to_driver=False, **memory)
    try:
        written = driving.drive(study, on, quiet())
    finally:
        if on == "ray":
            on_ray.library().shutdown()
    assert written["finished"] == written["cells"] == 2
