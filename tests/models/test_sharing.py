"""Many adapters on one base: each alone and all together are the networks that they are when merged."""

import threading
from typing import Any

import pytest
import torch

from atoll.config import AdapterSettings
from atoll.models import adapter, checkpoint, sharing
from atoll.models.checkpoint import Objective
from atoll.models.expert import velocity
from atoll.models.sharing import AdaptedExpert, Adapter, Base, together
from tests.models.test_adapter import SHAPE, blueprint, network, question, stirred

SETTINGS = [
    AdapterSettings(rank=2, scale=0.7),
    AdapterSettings(rank=0, tokens=3),
    AdapterSettings(rank=3, targets="attention+mlp+modulation", tokens=2),
    AdapterSettings(rank=2, scale=0.7, biases=True),
    AdapterSettings(rank=0, biases=True),
]


def one(settings: AdapterSettings, seed: int, kind: str = "class") -> Adapter:
    tensors = adapter.learnt(stirred(adapter.attach(network(kind), settings), seed))
    detached = {name: value.detach() for name, value in tensors.items()}
    return Adapter.of(detached, settings, "cpu", torch.float32)


def alone(settings: AdapterSettings, seed: int, asked: tuple[Any, ...], kind: str = "class") -> torch.Tensor:
    """The adapter as it is trained: on a base of its own."""
    with torch.no_grad():
        answer: torch.Tensor = stirred(adapter.attach(network(kind), settings), seed)(*asked)
    return answer


def part(asked: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    return tuple(None if value is None else value[rows] for value in asked)


@pytest.mark.each(10)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["class", "text", "none"])
@pytest.mark.parametrize("batch", [1, 40])
def test_one_adapter_whether_its_update_goes_into_the_weights_or_not(settings, kind, batch):
    """A row of 4 tokens is less work than the matrices, 40 rows are more."""
    base, asked = Base(network(kind).requires_grad_(False)), question(kind, batch)
    found = AdaptedExpert(base, one(settings, 3, kind))(*asked)
    torch.testing.assert_close(found, alone(settings, 3, asked, kind), rtol=1e-4, atol=1e-5)


@pytest.mark.each(10)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["class", "text", "none"])
@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 5, 2]])
def test_rows_of_several_adapters_are_as_each_alone(settings, kind, counts):
    base, asked = Base(network(kind).requires_grad_(False)), question(kind, sum(counts))
    experts = [AdaptedExpert(base, one(settings, seed, kind)) for seed in range(len(counts))]
    found, start = together(experts, counts)(*asked), 0
    for seed, count in enumerate(counts):
        rows = slice(start, start + count)
        exact = alone(settings, seed, part(asked, rows), kind)
        torch.testing.assert_close(found[rows], exact, rtol=1e-4, atol=1e-5)
        start += count


def test_an_adapter_that_has_learnt_nothing_is_the_base_bit_for_bit():
    settings = AdapterSettings(rank=2, tokens=2)
    tensors = {
        name: value.detach() for name, value in adapter.learnt(adapter.attach(network(), settings)).items()
    }
    base, asked = Base(network().requires_grad_(False)), question("class", 8)
    expert = AdaptedExpert(base, Adapter.of(tensors, settings, "cpu", torch.float32))
    assert torch.equal(expert(*asked), network()(*asked))
    assert torch.equal(together([expert, expert], [3, 5])(*asked), network()(*asked))


def test_nothing_of_the_base_is_changed_or_copied():
    base = Base(network().requires_grad_(False))
    before = {name: value.clone() for name, value in base.network.state_dict().items()}
    experts = [AdaptedExpert(base, one(SETTINGS[2], seed)) for seed in range(3)]
    for expert in experts:
        expert(*question("class", 20))
    together(experts, [1, 1, 1])(*question("class", 3))
    assert all(torch.equal(value, before[name]) for name, value in base.network.state_dict().items())
    own = {value.data_ptr() for value in base.network.parameters()}
    for expert in experts:
        assert {value.data_ptr() for value in expert.alone[0].parameters()} == own
        assert not list(expert.parameters())
    assert all(module.tokens is None for module in adapter.attentions(base.network).values())


def test_bytes_are_those_of_the_adapter_alone():
    adapted = one(AdapterSettings(rank=2), 0)
    shapes = adapter.shapes(
        blueprint().model_copy(
            update={"adapter": checkpoint.Adaptation(rank=2, base="0" * 64)},
        )
    )
    assert adapted.bytes == 4 * sum(torch.Size(shape).numel() for shape in shapes.values())


def test_a_network_is_made_once_for_as_long_as_it_is_in_use(monkeypatch):
    monkeypatch.setattr(sharing, "KEPT", 3)
    base = Base(network().requires_grad_(False))
    adapters = [one(SETTINGS[0], seed) for seed in range(2)]
    first = base.expert(adapters, [1, 2])
    assert base.expert(adapters, [1, 2]) is first
    assert base.expert(adapters, [2, 1]) is not first
    for rows in range(3, 8):
        base.expert(adapters, [rows, 1])
    assert len(base._twins) == 3
    assert base.expert(adapters, [1, 2]) is not first


def test_the_objective_is_the_base_s():
    noise, settings = Objective(path="cosine", prediction="noise"), SETTINGS[0]
    base = Base(network().requires_grad_(False), noise)
    model, asked = stirred(adapter.attach(network(), settings), 1), question("class", 5)
    with torch.no_grad():
        exact = velocity(model, noise, *asked)
    torch.testing.assert_close(AdaptedExpert(base, one(settings, 1))(*asked), exact, rtol=1e-4, atol=1e-4)


def test_only_networks_of_one_adapter_are_compiled():
    compiled: list[Any] = []
    base = Base(network().requires_grad_(False), compile=compiled.append)
    adapters = [one(SETTINGS[0], seed) for seed in range(2)]
    alone_network = base.expert(adapters[:1])
    base.expert(adapters, [1, 1])
    assert compiled == [alone_network]


def test_threads_may_ask_at_once():
    base = Base(network().requires_grad_(False))
    experts = [AdaptedExpert(base, one(SETTINGS[2], seed)) for seed in range(4)]
    asked = question("class", 6)
    exact = [expert(*asked) for expert in experts]
    wrong: list[int] = []

    def ask(k: int) -> None:
        wrong.extend(k for _ in range(10) if not torch.equal(experts[k](*asked), exact[k]))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_arithmetic_is_that_of_the_base():
    adapted = Adapter.of({"x.lora_b": torch.ones(2, 2)}, AdapterSettings(scale=0.5), "cpu", torch.bfloat16)
    assert adapted.tensors["x.lora_b"].dtype == torch.bfloat16
    assert float(adapted.tensors["x.lora_b"][0, 0]) == 0.5
    assert SHAPE == tuple(question("class")[0].shape[1:])
