import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from atoll import config, plan
from atoll.config import NetworkConfig, TrainConfig
from atoll.errors import ConfigError
from atoll.models.conditions import Kind
from atoll.models.dit import DiT
from atoll.models.router import Router
from tests.models.test_dit import captions

RECIPES = Path(__file__).parents[1] / "recipes"
OPTIONS: list[tuple[Kind, dict[str, Any]]] = [
    (kind, {"modulation": modulation, "text": text, "qk_norm": norm})
    for kind in get_args(Kind)
    for modulation in ("block", "shared")
    for text in ("cross", "pooled")
    for norm in (False, True)
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("clusters", [0, 5])
def test_parameters_are_those_of_the_network(kind, options, clusters):
    settings = NetworkConfig.model_validate({"width": 24, "depth": 2, "heads": 2, "patch": (2, 4), **options})
    sizes = {"classes": 7 if kind == "class" else 0, "text": 6 if kind == "text" else 0}
    with torch.device("meta"):
        model = (
            Router(settings, (3, 8, 8), clusters, kind, **sizes)
            if clusters
            else DiT(settings, (3, 8, 8), kind, **sizes)
        )
    planned = plan.Network(settings, (3, 8, 8), kind, clusters=clusters, length=3, **sizes)
    assert plan.parameters(planned) == sum(value.numel() for value in model.parameters())


@pytest.mark.parametrize("modulation", ["block", "shared"])
def test_a_flow_map_has_one_embedding_more(modulation):
    settings = NetworkConfig(width=24, depth=2, heads=2, patch=(2, 4), modulation=modulation)
    with torch.device("meta"):
        model = DiT(settings, (3, 8, 8), steps=True)
    planned = plan.Network(settings, (3, 8, 8), steps=True)
    assert plan.parameters(planned) == sum(value.numel() for value in model.parameters())


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
    assert asked["teacher_flops"] == pytest.approx(4 * jobs["student"]["teacher_flops"])
    assert "student" in plan.sentences(plan.plan(config.validate(tree, "a test")))


def kept_bytes(model, condition, batch, shape, half):
    """Bytes of all storages, but those of the weights, that autograd keeps after the forward pass."""
    weights = {value.untyped_storage().data_ptr() for value in model.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage  # holding it keeps the address from being used again
        return tensor

    x_t = torch.randn(batch, *shape)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
    ):
        (model(x_t, torch.rand(batch), condition).float() - x_t).square().mean()
    return sum(storage.nbytes() for storage in held.values())


SIZES = [
    ({"width": 64, "depth": 3, "heads": 2}, (4, 16, 16), 8),
    ({"width": 96, "depth": 4, "heads": 4}, (1, 28, 28), 4),
    ({"width": 256, "depth": 2, "heads": 4}, (4, 32, 32), 2),
]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("size", "shape", "batch"), SIZES)
@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "modulation": "shared"}], ids=str)
@pytest.mark.parametrize("kind", ["none", "text"])
def test_activations_are_what_autograd_keeps(kind, options, size, shape, batch, half, recompute):
    settings = NetworkConfig.model_validate({**size, **options, "patch": (2, 2)})
    text = 6 if kind == "text" else 0
    model = DiT(settings, shape, kind, text=text)
    model.trunk.recompute = recompute
    told = captions(batch, length=20) if text else None
    found = kept_bytes(model, told, batch, shape, half)
    network = plan.Network(settings, shape, kind, text=text, length=20 if text else 0)
    planned = plan.activations(network, batch, half=half, recompute=recompute)
    assert planned.kept == pytest.approx(found, rel=0.05)


def test_recomputing_needs_one_block_more_at_its_peak():
    network = plan.Network(NetworkConfig(width=64, depth=10, heads=2), (4, 16, 16))
    whole, recomputed = (plan.activations(network, 4, half=False, recompute=on) for on in (False, True))
    one = plan.activations(
        plan.Network(NetworkConfig(width=64, depth=1, heads=2), (4, 16, 16)), 4, half=False, recompute=False
    )
    none = (
        2 * one.kept
        - plan.activations(
            plan.Network(NetworkConfig(width=64, depth=2, heads=2), (4, 16, 16)),
            4,
            half=False,
            recompute=False,
        ).kept
    )
    assert whole.peak == whole.kept
    assert recomputed.peak - recomputed.kept == pytest.approx(one.kept - none)


def test_flops_are_those_that_are_counted():
    """Against torch's own counter, which counts the same products."""
    from torch.utils.flop_counter import FlopCounterMode

    for kind, options in OPTIONS:
        settings = NetworkConfig.model_validate(
            {"width": 32, "depth": 2, "heads": 2, "patch": (2, 2), **options}
        )
        text = 6 if kind == "text" else 0
        classes = 3 if kind == "class" else 0
        with torch.device("meta"):
            model = DiT(settings, (4, 8, 8), kind, classes, text).to("meta")
            told = captions(1) if text else torch.zeros(1, dtype=torch.long) if classes else None
            told = None if told is None else told.to("meta")
            with FlopCounterMode(display=False) as counter:
                model(torch.zeros(1, 4, 8, 8), torch.zeros(1), told)
        network = plan.Network(settings, (4, 8, 8), kind, classes, text, 3 if text else 0)
        assert plan.forward_flops(network) == pytest.approx(counter.get_total_flops(), rel=1e-6)


def test_the_published_flops_of_dit():
    """DiT-XL/2: 118.64 billion multiplications (Peebles & Xie, table 4)."""
    network = plan.Network(NetworkConfig(size="XL/2"), (4, 32, 32), "class", 1000)
    assert plan.forward_flops(network) / 2 / 1e9 == pytest.approx(118.64, rel=0.005)


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


def test_memory_by_hand():
    """Twenty bytes a weight: itself, its average, its gradient, two moments; half of it on two devices."""
    network = plan.Network(NetworkConfig(size="S/2"), (4, 32, 32))
    count = plan.parameters(network)
    one, two = (plan.memory(network, TrainConfig(batch=8), devices=n) for n in (1, 2))
    assert one.total - one.activations == 20 * count
    assert two.total - two.activations == 10 * count
    assert two.activations < 0.6 * one.activations
    muon = plan.memory(network, TrainConfig(batch=8, optimiser="muon"))
    assert muon.optimiser == one.optimiser - 4 * 12 * 12 * 384 * 384


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


def test_sentences_name_what_matters():
    text = plan.sentences(planned("laion-24gb"))
    for word in (
        "expert 0 to expert 7",
        "router",
        "605.7 M",
        "11,000,000 samples",
        "fits",
        "40% utilisation",
    ):
        assert word in text


def test_mistakes():
    with pytest.raises(ConfigError, match=r"plan\.gpu 'abacus' is not known; use one of"):
        planned("imagenet", "plan.gpu=abacus")
    with pytest.raises(ConfigError, match="patch"):
        planned("imagenet", "plan.shape=[4,33,32]")
    with pytest.raises(ConfigError, match="shape of the samples is not known"):
        plan.plan(config.validate({"name": "x", "data": {"source": "pictures"}}, "x"))


def test_what_is_there_is_measured_and_not_assumed():
    found = plan.plan(
        config.load(RECIPES / "fashion.toml"), {"shape": [1, 32, 32], "rows": 123, "classes": 10}
    )
    assert found["data"]["shape"] == [1, 32, 32]
    assert found["data"]["samples"] == 123
    assert math.isclose(found["data"]["bytes"], 123 * 1024)


def test_strategies_cost_what_the_paper_reports():
    expert, router = 308, 26  # GFLOPs of DDM's Table 1
    cost = {
        name: plan.strategy_flops(name, expert, router, 8)
        for name in (
            "ancestral",
            "oracle",
            "top-1",
            "top-2",
            "top-3",
            "sample-1",
            "sample-2",
            "nucleus-0.9",
            "full",
        )
    }
    assert cost == {
        **{"ancestral": 308, "oracle": 308, "top-1": 334, "top-2": 642, "top-3": 950},
        **{"sample-1": 334, "sample-2": 642, "nucleus-0.9": 334, "full": 2490},
    }
    assert plan.strategy_flops("full", expert, router, 1) == expert, "one expert needs no router"
    assert plan.strategy_flops("top-3", expert, router, 2) == 2 * expert + router


def test_a_whole_sample_counts_steps_solver_and_guidance():
    plain = planned("imagenet", "sample.steps=10", "sample.guidance=1.0")["strategies"]
    found = planned("imagenet", "sample.steps=10", "sample.guidance=3.0", "sample.solver=heun")["strategies"]
    router = plain["top-1"]["flops"] - plain["ancestral"]["flops"]
    assert plain["top-1"]["flops_per_sample"] == pytest.approx(10 * plain["top-1"]["flops"])
    assert found["ancestral"]["flops_per_sample"] == pytest.approx(4 * plain["ancestral"]["flops_per_sample"])
    assert found["top-1"]["flops_per_sample"] == pytest.approx(
        2 * 10 * (2 * plain["ancestral"]["flops"] + router)
    )
    assert "ancestral" in plan.sentences(planned("imagenet"))
    assert list(planned("fashion-monolith")["strategies"]) == ["ancestral"]
