"""Sampling on a GPU on paper: devices never meet, and what is waited for does not grow with the steps."""

import collections
from functools import partial

import pytest
import torch
from torch import nn

import atoll
from atoll.config import AdapterSettings, NetworkConfig
from atoll.models import adapter
from atoll.models.dit import DiT
from atoll.models.router import Router
from atoll.models.sharing import AdaptedExpert, Adapter, Base
from atoll.sampling import memory
from atoll.sampling.arithmetic import PLAIN, Arithmetic
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.routing import Band
from atoll.sampling.sampler import Sampler
from tests.pretend_gpu import GPU, pretended_gpu
from tests.thorough import some

NETWORK, SHAPE = NetworkConfig(width=16, depth=2, heads=2, patch=(2, 2)), (2, 4, 4)


def awake(network: nn.Module, seed: int) -> nn.Module:
    source = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=source) * 0.2
    return network.eval().requires_grad_(False)


def sampler(device: torch.device, arithmetic: Arithmetic = PLAIN, band: Band | None = None) -> Sampler:
    experts = [arithmetic.prepared(awake(DiT(NETWORK, SHAPE, "class", 3), k).to(device)) for k in range(3)]
    router = arithmetic.prepared(awake(Router(NETWORK, SHAPE, 3, "class", 3), 9).to(device))
    priors = torch.full((3,), 1 / 3).to(device)
    return Sampler(Ensemble(experts, priors, SHAPE, router, classes=3, band=band or Band()))


def waits(strategy: str, steps: int, **settings: object) -> collections.Counter[str]:
    """How often and where the CPU waits for a request of so many steps."""
    band = settings.pop("band", None)
    with pretended_gpu() as gpu:
        one = sampler(GPU, Arithmetic(torch.bfloat16), band)
        gpu.waits.clear()
        one.sample(6, strategy=strategy, steps=steps, guidance=2.0, **settings)
        return collections.Counter(gpu.places())


@pytest.mark.each(3)
@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++"])
@pytest.mark.parametrize("strategy", ["ancestral", "full"])
def test_steps_never_wait_where_it_is_known_whom_to_ask(strategy, solver):
    assert waits(strategy, 6, solver=solver) == waits(strategy, 3, solver=solver)


def test_a_step_that_chooses_waits_once():
    assert waits("top-1", 6) - waits("top-1", 3) == {"sampling/grouping.py groups": 3}


def test_outside_the_band_the_choice_is_fixed_and_nothing_is_waited_for():
    above = {"band": Band(0.0, 0.0)}  # asked at t = 1 and never again
    assert waits("top-1", 6, **above) == waits("top-1", 3, **above)


@pytest.mark.parametrize("strategy", some(["ancestral", "top-1", "top-2", "full", "sample-2"], 2))
def test_the_numbers_are_those_of_the_cpu(strategy):
    here = sampler(torch.device("cpu")).sample(5, strategy=strategy, steps=3, guidance=2.0)
    with pretended_gpu():
        there = sampler(GPU).sample(5, strategy=strategy, steps=3, guidance=2.0).cpu()
    torch.testing.assert_close(there, here)


def test_products_are_in_the_arithmetic_that_was_asked_for():
    with pretended_gpu() as gpu:
        sampler(GPU, Arithmetic(torch.bfloat16)).sample(4, strategy="full", steps=2)
    assert gpu.products.keys() == {torch.bfloat16}


def test_a_small_card_holds_few_experts(tmp_path):
    files = [tmp_path / str(number) for number in range(4)]
    for path in files:
        path.write_bytes(bytes(1000))
    with pretended_gpu(memory=2600):
        assert memory.fitting(files, GPU) == 2
        assert memory.fitting(files, GPU, torch.bfloat16) == 4


def adapters(device: torch.device, dtype: torch.dtype = torch.float32) -> Sampler:
    """Three adapters on one base, which go together wherever they may."""
    settings = AdapterSettings(rank=2, tokens=1)
    network = Arithmetic(dtype).cast(awake(DiT(NETWORK, SHAPE, "class", 3), 0).to(device))
    base, experts = Base(network), []
    for k in range(3):
        learnt = adapter.learnt(adapter.attach(DiT(NETWORK, SHAPE, "class", 3), settings))
        source = torch.Generator().manual_seed(k)
        tensors = {name: torch.randn(value.shape, generator=source) * 0.2 for name, value in learnt.items()}
        experts.append(AdaptedExpert(base, Adapter.of(tensors, settings, device, dtype)))
    router = Arithmetic(dtype).cast(awake(Router(NETWORK, SHAPE, 3, "class", 3), 9).to(device))
    priors = torch.full((3,), 1 / 3).to(device)
    roster = Roster([partial(experts.__getitem__, k) for k in range(3)], kin=["base"] * 3)
    return Sampler(Ensemble(roster, priors, SHAPE, router, classes=3))


@pytest.mark.parametrize("strategy", some(["ancestral", "top-1", "top-2", "full"], 2))
@pytest.mark.thorough
def test_adapters_of_one_base_have_the_numbers_of_the_cpu(strategy):
    how = {"strategy": strategy, "steps": 3, "guidance": 2.0, "batch": 16}
    here = adapters(torch.device("cpu")).sample(5, **how)
    with pretended_gpu():
        there = adapters(GPU).sample(5, **how).cpu()
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


def test_steps_of_adapters_never_wait_where_it_is_known_whom_to_ask():
    places = []
    for steps in (3, 6):
        with pretended_gpu() as gpu:
            one = adapters(GPU, torch.bfloat16)
            gpu.waits.clear()
            one.sample(6, strategy="ancestral", steps=steps, guidance=2.0)
            places.append(gpu.places())
    assert places[0] == places[1]
    assert gpu.products.keys() == {torch.bfloat16}


@pytest.mark.parametrize(
    ("capability", "dtype"), [((8, 0), torch.bfloat16), ((7, 5), torch.float16), ((6, 1), torch.float32)]
)
@pytest.mark.thorough(dtype=torch.float32)
def test_a_finished_run_is_sampled_in_the_arithmetic_of_the_card(finished, capability, dtype):
    how = {"num": 6, "strategy": "full", "steps": 4}
    exact = atoll.load(finished.path, precision="float32").sample(**how)
    with pretended_gpu(capability) as gpu:
        found = atoll.load(finished.path, precision="auto", compile="off").sample(**how).cpu()
    assert gpu.products.keys() == {dtype}
    assert float((found - exact).norm() / exact.norm()) < 0.05
