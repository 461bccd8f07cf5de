import math
import subprocess
import sys
from pathlib import Path

import pytest

from atoll import config, plan
from atoll.errors import ConfigError

RECIPES = Path(__file__).parents[2] / "recipes"


def planned(name, *overrides):
    return plan.plan(config.load(RECIPES / f"{name}.toml", overrides))


@pytest.mark.parametrize(
    ("recipe", "millions", "router"),
    [("imagenet", 674.8, 130.3), ("laion", 823.3, 158.5), ("laion-24gb", 605.7, 129.5)],
)
def test_recipes_of_the_papers(recipe, millions, router):
    found = planned(recipe)
    assert len(found["jobs"]) == 9
    assert found["jobs"]["expert 0"]["parameters"] / 1e6 == pytest.approx(millions, abs=0.1)
    assert found["jobs"]["router"]["parameters"] / 1e6 == pytest.approx(router, abs=0.1)
    assert all(job["fits"] for job in found["jobs"].values())


def test_experts_together_cost_what_the_monolith_would():
    """The papers' matching: the same steps, the batch divided; 256 and 1024 samples a step in all."""
    for recipe, batch in (("imagenet", 256), ("laion", 1024)):
        jobs = planned(recipe)["jobs"]
        assert sum(jobs[f"expert {k}"]["batch"] for k in range(8)) == batch
        assert {jobs[f"expert {k}"]["steps"] for k in range(8)} == {800_000}


def test_the_24_gb_recipe_costs_the_papers_72_a100_days_in_all():
    found = planned("laion-24gb", "plan.gpu=A100-80GB")
    experts = sum(found["jobs"][f"expert {k}"]["hours"] for k in range(8)) / 24
    assert experts == pytest.approx(72, rel=0.05)


def test_what_does_not_fit_says_what_would():
    settings = ("expert.recompute=false", "plan.gpu=RTX-4090")
    for extra in ((), ("expert.batch=4", "expert.batch_of=expert")):
        found = planned("imagenet", *settings, *extra)
        job = found["jobs"]["expert 0"]
        if job["fits"]:
            continue
        changes = [f"expert.{part.replace(' ', '')}" for part in job["to_fit"].split(" and ")]
        assert planned("imagenet", *settings, *extra, *changes)["jobs"]["expert 0"]["fits"], job["to_fit"]
    assert not planned("imagenet", *settings)["jobs"]["expert 0"]["fits"]


def test_a_network_too_large_for_a_device_wants_several():
    found = planned("imagenet", "expert.width=4608", "plan.gpu=RTX-4090")
    assert "fsdp" in found["jobs"]["expert 0"]["to_fit"]


def test_mistakes():
    with pytest.raises(ConfigError, match=r"plan\.gpu 'abacus' is not known; use one of"):
        planned("imagenet", "plan.gpu=abacus")
    with pytest.raises(ConfigError, match="patch"):
        planned("imagenet", "plan.shape=[4,33,32]")
    with pytest.raises(ConfigError, match="shape of the samples is not known"):
        plan.plan(config.validate({"name": "x", "data": {"source": "pictures"}}, "x"))


def test_what_is_there_is_measured_and_not_assumed():
    facts = config.Facts(shape=(1, 32, 32), rows=123, classes=10)
    found = plan.plan(config.load(RECIPES / "fashion.toml"), facts)
    assert found["data"]["shape"] == [1, 32, 32]
    assert found["data"]["samples"] == 123
    assert math.isclose(found["data"]["bytes"], 123 * 1024)


def test_it_loads_without_torch_unless_this_cpu_is_asked_for():
    code = (
        "import sys; from atoll import config, plan; from pathlib import Path; "
        f"plan.plan(config.load(Path({str(RECIPES / 'imagenet.toml')!r}))); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_several_devices_take_a_share_of_the_hours_each():
    one, eight = (planned("imagenet", f"launch.gpus={n}.0") for n in (1, 8))
    job = eight["jobs"]["expert 0"]
    assert (job["devices"], job["parallel"]) == (8, "ddp")
    assert job["hours"] == pytest.approx(one["jobs"]["expert 0"]["hours"] / 8)
    assert eight["total"]["device_hours"] == pytest.approx(one["total"]["device_hours"])
    assert "on each of 8 devices (ddp)" in plan.sentences(eight)


def test_threads_that_pay_grow_with_the_network_and_the_batch():
    run = config.load(RECIPES / "fashion.toml")
    assert plan.useful_threads(run, run.expert, run.expert.batch) == 1
    assert plan.useful_threads(run, run.expert.model_copy(update={"width": 384, "heads": 6}), 32) == 2


def test_hours_on_this_machine(monkeypatch):
    """Jobs of one thread share the cores; a start comes before them, a student after them, each alone."""
    one = plan.Device(16, 0.2, half=False, utilisation=0.5, at_once=2, cores=2)
    monkeypatch.setattr(plan.sums, "device_named", lambda name, jobs: one)
    small = {"width": 24, "depth": 2, "heads": 2, "patch": [4, 4], "steps": 100, "batch": 8}
    tree = {
        "name": "a",
        "partition": {"clusters": 2},
        "expert": {**small, "batch_of": "expert"},
        "router": small,
        "start": {"steps": 300, "batch": 8},
        "student": {"steps": 100, "batch": 8},
        "plan": {"gpu": "cpu"},
    }
    made = plan.plan(config.validate(tree, "a test"))
    jobs = made["jobs"]
    for job in jobs.values():  # a core each: products are small
        assert job["hours"] == pytest.approx(job["flops"] / (0.1e12 * 0.5) / 3600)
    shared = sum(jobs[name]["hours"] for name in ("expert 0", "expert 1", "router")) / 2
    alone = 3 * jobs["expert 0"]["hours"] + jobs["student"]["hours"]  # a start of three times the steps
    assert alone > shared / 2, "neither hides the other"
    assert made["total"]["device_hours"] == pytest.approx(shared + alone)
    assert next(iter(jobs)) == "start"
    assert "2 jobs at once" in plan.sentences(made)
