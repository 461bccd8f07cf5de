from typing import Any

import pytest

from atoll import config, plan
from atoll.models import costs
from atoll.plan.known import about_data, network_of


def test_students_and_their_teachers_are_planned():
    """DDM's own count: a student with a quarter of the batch takes a third of the FLOPs, teacher included."""
    tree = {
        "name": "a",
        "partition": {"clusters": 4},
        "expert": {"width": 24, "depth": 2, "heads": 2, "patch": [4, 4], "steps": 100, "batch": 64},
        "student": {"steps": 100, "batch": 16, "few": {"steps": 50, "trajectories": 0, "batch": 16}},
    }
    jobs = plan.plan(config.validate(tree, "a test"))["jobs"]
    assert jobs["student"]["flops"] == pytest.approx(jobs["expert 0"]["flops"] / 3)
    assert jobs["student"]["teacher_flops"] == pytest.approx(jobs["student"]["flops"] / 4)
    forward = jobs["few-step"]["forward_flops_per_sample"]
    own = 3 * forward + 2 * 0.25 * forward  # three passes, and two more for a quarter of the samples
    teacher = jobs["student"]["forward_flops_per_sample"]
    assert jobs["few-step"]["flops"] == pytest.approx((own + teacher) * 50 * 16)
    everyone = {**tree, "student": {"steps": 100, "batch": 16, "teacher": "ensemble"}}
    asked = plan.plan(config.validate(everyone, "a test"))["jobs"]["student"]
    router = jobs["router"]["forward_flops_per_sample"] * 100 * 16  # it says how much each counts
    assert asked["teacher_flops"] == pytest.approx(4 * jobs["student"]["teacher_flops"] + router)
    assert "student" in plan.sentences(plan.plan(config.validate(tree, "a test")))


def tree(**student: Any) -> dict[str, Any]:
    return {
        "name": "a",
        "partition": {"clusters": 4},
        "condition": {"kind": "class"},
        "plan": {"classes": 10},
        "expert": {"width": 24, "depth": 2, "heads": 2, "patch": [4, 4], "steps": 100, "batch": 64},
        "student": {"steps": 100, "batch": 16, **student},
    }


def teachers(**student: Any) -> dict[str, float]:
    """Bytes of teachers in each job of a distillation."""
    jobs = plan.plan(config.validate(tree(**student), "a test"))["jobs"]
    return {
        name: job["memory_bytes"]["teachers"] for name, job in jobs.items() if job["memory_bytes"]["teachers"]
    }


def sizes() -> tuple[int, int]:
    """Bytes of an expert and of the router."""
    run = config.validate(tree(), "a test")
    networks = (network_of(part, run, about_data(run, config.Facts())) for part in (run.expert, run.router))
    expert, router = (costs.weight_bytes(network) for network in networks)
    return expert, router


def test_teachers_are_in_memory():
    expert, router = sizes()
    assert teachers() == {"student": 4 * expert}
    assert teachers(resident=2) == {"student": 2 * expert}
    assert teachers(resident=9) == {"student": 4 * expert}
    assert teachers(teacher="ensemble") == {"student": 4 * expert + router}
    assert teachers(teacher="sampled", resident=1) == {"student": expert + router}


def test_teachers_of_a_few_step_student_are_in_memory():
    expert, router = sizes()
    assert teachers(few={}) == {"student": 4 * expert, "few-step": expert}, "the dense student alone"
    direct = {"teacher": "label", "init": "expert"}
    assert teachers(steps=0, few=direct) == {"few-step": 4 * expert + router}, "trajectories are of all"
    alone = {**direct, "trajectories": 0, "steps": 5}
    assert teachers(steps=0, few=alone) == {"few-step": 4 * expert}


def test_guidance_asks_twice_where_it_acts():
    plain, guided = (
        plan.plan(config.validate(tree(guidance=g, guided=[0.0, 0.5]), "a test"))["jobs"]["student"]
        for g in (1.0, 2.0)
    )
    assert guided["teacher_flops"] == pytest.approx(1.5 * plain["teacher_flops"])


def test_fewer_teachers_make_it_fit():
    """Eight teachers of DiT-XL fill a card; as many as fit are held at once."""
    big: dict[str, Any] = {
        "name": "a",
        "plan": {"shape": [4, 32, 32], "gpu": "RTX-4090"},
        "partition": {"clusters": 8},
        "expert": {"size": "XL/2", "batch": 8},
        "student": {"batch": 8, "recompute": True, "micro_batch": 1},
    }
    job = plan.plan(config.validate(big, "a test"))["jobs"]["student"]
    assert not job["fits"]
    assert job["memory_bytes"]["teachers"] > 20e9
    key, _, value = job["to_fit"].partition(" = ")
    assert key == "resident"
    fewer = {**big, "student": {**big["student"], "resident": int(value)}}
    assert plan.plan(config.validate(fewer, "a test"))["jobs"]["student"]["fits"]
