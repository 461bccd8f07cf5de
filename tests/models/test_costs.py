"""Costs are those of the networks, for every combination of settings that the config's own types allow."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atoll.config import AdapterSettings, NetworkConfig, TrainConfig
from atoll.flow import gaussian
from atoll.models import adapter, attention, conditions, costs
from atoll.models.costs import Network
from atoll.models.dit import DiT, product
from atoll.models.router import Router
from atoll.train import optimiser
from tests.models.test_dit import captions
from tests.thorough import some

GRIDS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 8), (2,)),
    ((3, 8, 8), (2, 4)),
    ((1, 4, 8, 4), (2, 4, 1)),
]
"""Samples (channels, *grid) of every rank, and their patches."""


def values(annotation: Any) -> tuple[Any, ...]:
    """All values that a type of the config allows, if they are few."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return (False, True) if annotation is bool else ()


def settings() -> list[dict[str, Any]]:
    """Every combination of those keys of a network that are choices."""
    choices = {
        name: values(field.annotation)
        for name, field in NetworkConfig.model_fields.items()
        if values(field.annotation)
    }
    assert {"modulation", "text", "qk_norm", "activation"} <= choices.keys()
    return [dict(zip(choices, chosen, strict=True)) for chosen in itertools.product(*choices.values())]


def every(shape: tuple[int, ...], patch: tuple[int, ...]) -> list[Network]:
    """Every network: each choice, condition and role; a hidden layer of uneven width, one block or two."""
    made: list[Network] = []
    roles: list[dict[str, Any]] = [{}, {"steps": True}, {"clusters": 5}]
    for options, kind, role in itertools.product(settings(), get_args(conditions.Kind), roles):
        config = NetworkConfig.model_validate(
            {"width": 24, "depth": 1 + len(made) % 5 // 4, "heads": 2, "patch": patch, "mlp": 2.6, **options}
        )
        told = {"class": {"classes": 7}, "text": {"text": 6, "length": 3}}.get(kind, {})
        made.append(Network(config, shape, kind, **told, **role))
    return made


def build(network: Network) -> DiT | Router:
    told: dict[str, Any] = {"kind": network.kind, "classes": network.classes, "text": network.text}
    with torch.device("meta"):
        if network.clusters:
            return Router(network.config, network.shape, network.clusters, **told).to("meta")
        return DiT(network.config, network.shape, **told, steps=network.steps).to("meta")


def condition(network: Network) -> conditions.Condition:
    if network.kind == "text":
        return captions(1, length=network.length)
    return torch.zeros(1, dtype=torch.long) if network.kind == "class" else None


def counted(model: DiT | Router, network: Network, *, empty: bool = True) -> int:
    """FLOPs of a sample by torch's own counter, which knows attention on a CPU by its products only."""
    if empty:
        model.to_empty(device="cpu")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *network.shape), torch.zeros(1), condition(network))
    return counter.get_total_flops()


@pytest.mark.parametrize(("shape", "patch"), GRIDS, ids=str)
def test_parameters_and_flops_are_those_of_the_network(shape, patch):
    """Parameters exactly; FLOPs as torch's own counter has them, which counts the same products."""
    networks = every(shape, patch)
    assert len(networks) == 9 * math.prod(
        len(set(column)) for column in zip(*map(dict.values, settings()), strict=True)
    )
    # The rank of samples meets every choice, condition and role, though not all of them at once.
    networks = some(networks, 30) if len(patch) == 2 else some(networks[::5], 30)
    for network in networks:
        model = build(network)
        assert costs.parameters(network) == sum(value.numel() for value in model.parameters()), network
        assert costs.forward_flops(network) == pytest.approx(counted(model, network), rel=1e-9), network


def test_prototypes_cost_their_products_and_have_no_weights():
    config = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))
    network = Network(config, (1, 8, 8), "class", 7, clusters=5, prototypes=11)
    router = Router(config, (1, 8, 8), 5, "class", 7, prototypes=11)
    assert costs.parameters(network) == sum(value.numel() for value in router.parameters())
    assert costs.forward_flops(network) == counted(router, network, empty=False)
    plain = replace(network, prototypes=0)
    extra = costs.training_flops(network, recompute=False) - costs.training_flops(plain, recompute=False)
    assert extra == 2 * 11 * 64  # forward only: nothing is learnt of them


def test_blocks_are_counted_alone():
    for network in every(*GRIDS[1])[:24]:
        block = build(network).trunk.blocks[0]
        assert costs.block_parameters(network) == sum(value.numel() for value in block.parameters())


def test_text_by_two_layers_is_not_pooled():
    """PixArt-α at its own size: 611 million weights; with a pooled text it would have 461."""
    tree = {"size": "XL/2", "modulation": "shared", "text": "cross-mlp"}
    pixart, pooled = (
        Network(
            NetworkConfig.model_validate({**tree, "text": text}), (4, 64, 64), "text", text=4096, length=120
        )
        for text in ("cross-mlp", "pooled")
    )
    assert costs.parameters(pixart) == sum(value.numel() for value in build(pixart).parameters())
    assert costs.parameters(pixart) / 1e6 == pytest.approx(610.8, abs=0.1)
    assert costs.parameters(pooled) / 1e6 == pytest.approx(460.7, abs=0.1)


def test_the_published_flops_of_dit():
    """DiT-XL/2: 118.64 billion multiplications (Peebles & Xie, table 4)."""
    network = costs.Network(NetworkConfig(size="XL/2"), (4, 32, 32), "class", 1000)
    assert costs.forward_flops(network) / 2 / 1e9 == pytest.approx(118.64, rel=0.005)


def test_bytes_of_an_expert():
    network = Network(NetworkConfig(size="S/2"), (4, 32, 32))
    assert costs.weight_bytes(network) == 4 * costs.parameters(network)
    assert costs.weight_bytes(network, costs.HALF) == 2 * costs.parameters(network)


def test_the_smallest_product_of_a_block():
    network = Network(NetworkConfig(width=64, depth=1, heads=2, mlp=0.5), (1, 8, 8))
    assert costs.product(network, 3) == 3 * 16 * 64 * 32 == product(build(network), 3)
    assert product(torch.nn.Linear(3, 3), 3) == 0


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
    ({"width": 64, "depth": 3, "heads": 2}, (4, 16, 16), 4),
    ({"width": 96, "depth": 4, "heads": 4}, (1, 20, 20), 3),
    ({"width": 128, "depth": 2, "heads": 4}, (4, 24, 24), 2),
]


@pytest.mark.each(18)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("size", "shape", "batch"), SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True, "modulation": "shared"}, {"text": "cross-mlp"}], ids=str
)
@pytest.mark.parametrize("kind", ["none", "text"])
def test_activations_are_what_autograd_keeps(kind, options, size, shape, batch, half, recompute):
    settings = NetworkConfig.model_validate({**size, **options, "patch": (2, 2)})
    text = 6 if kind == "text" else 0
    model = DiT(settings, shape, kind, text=text)
    model.trunk.recompute = recompute
    told = captions(batch, length=20) if text else None
    found = kept_bytes(model, told, batch, shape, half)
    network = costs.Network(settings, shape, kind, text=text, length=20 if text else 0)
    planned = costs.activations(network, batch, half=half, recompute=recompute, pairs=True)
    assert planned.kept == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"text": "cross-mlp"}], ids=str)
def test_fused_attention_keeps_no_matrix_of_pairs(monkeypatch, options):
    """As on a GPU, whose attention is torch's own whatever the arithmetic."""
    monkeypatch.setattr(attention, "FEW_KEYS", 0)
    settings = NetworkConfig.model_validate({**SIZES[0][0], **options, "patch": (2, 2)})
    shape, text = SIZES[0][1], 6 if options.get("text") else 0
    kind = "text" if text else "none"
    model, told = DiT(settings, shape, kind, text=text), captions(4, length=20) if text else None
    network = costs.Network(settings, shape, kind, text=text, length=20 if text else 0)
    planned = costs.activations(network, 4, half=True, recompute=False)
    assert planned.kept == pytest.approx(kept_bytes(model, told, 4, shape, half=True), rel=0.05)


def test_recomputing_needs_one_block_more_at_its_peak():
    network = costs.Network(NetworkConfig(width=64, depth=10, heads=2), (4, 16, 16))
    whole, recomputed = (costs.activations(network, 4, half=False, recompute=on) for on in (False, True))
    one = costs.activations(
        costs.Network(NetworkConfig(width=64, depth=1, heads=2), (4, 16, 16)), 4, half=False, recompute=False
    )
    none = (
        2 * one.kept
        - costs.activations(
            costs.Network(NetworkConfig(width=64, depth=2, heads=2), (4, 16, 16)),
            4,
            half=False,
            recompute=False,
        ).kept
    )
    assert whole.peak == whole.kept
    assert recomputed.peak - recomputed.kept == pytest.approx(one.kept - none)


S2 = Network(NetworkConfig(size="S/2"), (4, 32, 32))
COUNT = costs.parameters(S2)


def test_memory_by_hand():
    """Twenty bytes a weight: itself, its average, its gradient, two moments; of DDP on each device."""
    one, two = (costs.memory(S2, TrainConfig(batch=8), devices=n) for n in (1, 2))
    assert one.total - one.activations == costs.TRAINED * COUNT == 20 * COUNT
    assert two.total - two.activations == 20 * COUNT
    assert two.activations < 0.6 * one.activations


@pytest.mark.parametrize("kind", ["none", "text"])
@pytest.mark.parametrize("which", ["adamw", "muon"])
def test_the_optimiser_remembers_as_much(which, kind):
    """Against the optimisers themselves, after a step."""
    config = NetworkConfig(width=32, depth=2, heads=2, patch=(4, 4))
    network = Network(config, (1, 8, 8), kind, text=6 if kind == "text" else 0)
    model = DiT(config, (1, 8, 8), kind, text=network.text)
    train = TrainConfig(batch=1, optimiser=which)
    built = optimiser.build(model, train)
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    for part in built:
        part.step(1e-3)
    remembered = [v for part in built for state in part.state.values() for v in state.values() if v.ndim]
    planned = costs.memory(network, train).optimiser
    assert planned == sum(value.nbytes for value in remembered)


def test_fsdp_shares_everything_but_what_is_at_work():
    """A share of twenty bytes a weight; two blocks whole, what is outside them, a block's gradients."""
    train = TrainConfig(batch=8)
    four = costs.memory(S2, train, devices=4, parallel="fsdp")
    block = costs.block_parameters(S2)
    assert four.weights + four.average + four.gradients + four.optimiser == 5 * COUNT
    assert four.gathered == 4 * (3 * block + COUNT - 12 * block)
    assert costs.memory(S2, train, devices=1, parallel="fsdp") == costs.memory(S2, train)


def test_fsdp_adds_gradients_of_micro_batches_up_whole():
    whole, pieces = (
        costs.memory(S2, TrainConfig(batch=8, micro_batch=size), devices=2, parallel="fsdp")
        for size in (None, 2)
    )
    assert pieces.gathered - whole.gathered == 4 * (COUNT - costs.block_parameters(S2))


def test_a_micro_batch_larger_than_the_share_is_the_share():
    one, large = (costs.memory(S2, TrainConfig(batch=8, micro_batch=size), devices=4) for size in (2, 100))
    assert one == large


def test_teachers_are_in_memory():
    train = TrainConfig(batch=8)
    assert costs.memory(S2, train, teachers=7.0).total == costs.memory(S2, train).total + 7


ADAPTERS = [
    AdapterSettings(rank=rank, targets=targets, tokens=tokens, biases=biases)
    for targets in get_args(AdapterSettings.model_fields["targets"].annotation)
    for rank, tokens, biases in ((3, 0, False), (0, 2, False), (3, 2, True))
]


def with_adapters(experts: list[Network]) -> list[Network]:
    """Every network with one adapter, dealt out so that each adapter meets every value of every choice."""
    dealt = random.Random(0).sample(experts, len(experts))
    made = [replace(each, adapter=ADAPTERS[number % len(ADAPTERS)]) for number, each in enumerate(dealt)]
    met = {
        (ADAPTERS.index(each.adapter), name, value) for each in made for name, value in chosen(each).items()
    }
    values = {(name, value) for each in made for name, value in chosen(each).items()}
    assert len(met) == len(ADAPTERS) * len(values)
    return made


def chosen(network: Network) -> dict[str, Any]:
    """The value of each choice of a network, with its condition and role."""
    return {
        **{name: getattr(network.config, name) for name in settings()[0]},
        "kind": network.kind,
        "steps": network.steps,
    }


def test_adapters_are_counted_for_every_combination_of_settings():
    """Weights exactly, all and those that are learnt; FLOPs as torch's own counter has them."""
    shape, patch = GRIDS[1]
    networks = [network for network in every(shape, patch) if not network.clusters]
    for adapted in some(with_adapters(networks), 24):
        network = replace(adapted, adapter=None)
        model = adapter.attach(build(network), adapted.adapter)
        assert costs.parameters(adapted) == sum(value.numel() for value in model.parameters()), adapted
        assert costs.learnt(adapted) == sum(value.numel() for value in adapter.learnt(model).values())
        assert costs.base_bytes(adapted) == costs.weight_bytes(network)
        assert costs.forward_flops(adapted) == pytest.approx(counted(model, network), rel=1e-9), adapted


@pytest.mark.parametrize("about", ADAPTERS[:1] + ADAPTERS[6:9], ids=str)
@pytest.mark.parametrize(("half", "kind"), [(False, "none"), (True, "text")])
def test_activations_of_an_adapter_are_enough_and_not_far_more(about, half, kind):
    """What the plan says is what autograd keeps at least, and at most two thirds more; by default a third."""
    settings = NetworkConfig(width=64, depth=3, heads=2, patch=(2, 2))
    text, shape = (6 if kind == "text" else 0), (4, 8, 8)
    model = adapter.attach(DiT(settings, shape, kind, text=text), about)
    kept = kept_bytes(model, captions(4, length=20) if text else None, 4, shape, half)
    network = costs.Network(settings, shape, kind, text=text, length=20 if text else 0, adapter=about)
    planned = costs.activations(network, 4, half=half, recompute=False).kept
    default = about.rank > 0 and about.targets == "attention+mlp"
    assert kept <= planned * 1.05
    assert planned <= (1.34 if default else 1.67) * kept
    whole = costs.activations(replace(network, adapter=None), 4, half=half, recompute=False).kept
    assert planned < whole or about.biases, "for biases of scales and gates all that they multiply is kept"


def test_training_an_adapter_takes_two_passes_of_the_base_and_three_of_its_own():
    shape, about = (4, 16, 16), AdapterSettings(rank=4)
    settings = NetworkConfig(width=64, depth=4, heads=2, patch=(2, 2))
    model = adapter.attach(DiT(settings, shape), about)
    network = Network(settings, shape, adapter=about)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(torch.randn(1, *shape), torch.rand(1)).square().mean())
    planned = costs.training_flops(network, recompute=False)
    # What comes before the first update has no gradients: a quarter of it here, of 4 blocks and a few tokens.
    assert 1 <= planned / counter.get_total_flops() < 1.25
    whole = costs.training_flops(replace(network, adapter=None), recompute=False)
    assert whole == 3 * costs.forward_flops(replace(network, adapter=None))
    assert planned < 0.85 * whole
    more = costs.training_flops(network, recompute=True) - planned
    assert more == pytest.approx(costs.forward_flops(network))


@pytest.mark.parametrize("which", ["adamw", "muon"])
@pytest.mark.parametrize("modulation", ["block", "shared"])
def test_memory_of_an_adapter_in_training(which, modulation):
    """The base once; average, gradients and moments of the adapter alone, as the optimisers have them."""
    about = AdapterSettings(rank=3, targets="attention+mlp+modulation", tokens=2)
    config = NetworkConfig(width=32, depth=2, heads=2, patch=(4, 4), modulation=modulation)
    model = adapter.attach(DiT(config, (1, 8, 8)), about)
    network, train = Network(config, (1, 8, 8), adapter=about), TrainConfig(batch=1, optimiser=which)
    built = optimiser.build(model, train)
    for value in adapter.learnt(model).values():
        value.grad = torch.ones_like(value)
    for part in built:
        part.step(1e-3)
    remembered = [v for part in built for state in part.state.values() for v in state.values() if v.ndim]
    planned = costs.memory(network, train)
    assert planned.optimiser == sum(value.nbytes for value in remembered)
    assert planned.weights == sum(value.nbytes for value in model.parameters())
    assert planned.average == planned.gradients == costs.weight_bytes(network)
    assert costs.trained_bytes(network) == costs.base_bytes(network) + 5 * costs.weight_bytes(network)


@pytest.mark.parametrize(("count", "shape"), [(90, (3, 8, 8)), (40, (3, 8, 8)), (50, (4, 5))])
def test_the_price_of_moments_is_what_finding_them_multiplies(count, shape):
    x_0 = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    rank = 11
    with FlopCounterMode(display=False) as counter:
        gaussian.fitted(x_0, rank)
    assert counter.get_total_flops() == costs.moments_flops(count, shape, rank)
