import pytest
import torch

import atoll
from atoll.config import NetworkConfig, SampleConfig
from atoll.models.dit import DiT
from atoll.models.router import Router
from atoll.sampling import arithmetic
from atoll.sampling.arithmetic import Arithmetic
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from tests.models.test_dit import awake, captions
from tests.serving import served

CPU = torch.device("cpu")
NETWORK = NetworkConfig(width=24, depth=2, heads=2, patch=(2, 2), qk_norm=True)
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("text", ["cross", "cross-mlp", "pooled"])
def test_weights_are_held_once_and_times_stay_exact(dtype, text):
    network = awake(DiT(NETWORK.model_copy(update={"text": text}), (1, 4, 4), "text", text=6))
    x_t, t = torch.randn(2, 1, 4, 4), torch.tensor([0.3, 0.7])
    exact = network(x_t, t, captions(2))
    Arithmetic(dtype).prepared(network)
    assert {value.dtype for value in network.parameters()} == {dtype}
    assert network.trunk.time.frequency.dtype == torch.float32
    answer = network(x_t, t, captions(2))
    assert answer.dtype == dtype
    torch.testing.assert_close(answer.float(), exact, atol=0.05 * exact.abs().max().item(), rtol=0)


def test_prototypes_are_compared_in_full():
    """Distances of many dimensions, divided by little noise, have no digits to spare."""
    router = Router(NETWORK, (1, 4, 4), 2, prototypes=3)
    Arithmetic(torch.bfloat16).prepared(router)
    assert {buffer.dtype for buffer in router.prototypes.buffers() if buffer.is_floating_point()} == {
        torch.float64
    }
    assert router(torch.randn(2, 1, 4, 4).bfloat16(), torch.tensor([0.3, 0.7])).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("strategy", ["full", "top-1", "ancestral"])
def test_noise_solver_and_weights_stay_float32(dtype, strategy):
    """Half precision answers, float32 sums: the samples are those of float32 but for rounding."""

    def made(arithmetic: Arithmetic) -> Sampler:
        torch.manual_seed(0)
        experts = [arithmetic.prepared(awake(DiT(NETWORK, (1, 4, 4)))) for _ in range(2)]
        router = arithmetic.prepared(awake(Router(NETWORK, (1, 4, 4), 2)))
        return Sampler(Ensemble(experts, torch.ones(2) / 2, (1, 4, 4), router))

    exact, half = (
        made(one).trace(6, strategy=strategy, steps=4) for one in (arithmetic.PLAIN, Arithmetic(dtype))
    )
    assert half.x_0.dtype == half.weights.dtype == half.disagreement.dtype == torch.float32
    assert not torch.equal(half.x_0, exact.x_0)
    if strategy != "top-1":  # there rounding may choose another expert
        torch.testing.assert_close(half.x_0, exact.x_0, atol=0.1 * exact.x_0.abs().max().item(), rtol=0)


def test_auto_is_what_this_machine_has_units_for(monkeypatch):
    for pretended, dtype in (("1", torch.bfloat16), ("0", torch.float32)):
        monkeypatch.setenv("ATOLL_CPU_BFLOAT16", pretended)
        assert arithmetic.choose(SampleConfig(), CPU) == Arithmetic(dtype)
    assert arithmetic.choose(SampleConfig(precision="float16"), CPU).dtype == torch.float16


def test_a_run_is_opened_in_the_arithmetic_that_is_asked_for(tmp_path):
    run = served(tmp_path / "run")
    for name in ("float32", "bfloat16"):
        sampler = atoll.load(run.path, precision=name)
        weights = next(sampler.ensemble.experts[0].parameters())
        assert weights.dtype == getattr(torch, name)
        assert sampler.sample(2).dtype == torch.float32


def test_a_compiler_that_fails_is_done_without(monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(torch, "compile", fails)
    arithmetic._compiler_works.cache_clear()
    assert arithmetic.choose(SampleConfig(compile="on", precision="float32"), CPU) == arithmetic.PLAIN
    assert "torch.compile does not work here (no compiler)" in caplog.text
    assert not arithmetic.choose(SampleConfig(precision="float32"), CPU).compiled, "a CPU does not try"
    arithmetic._compiler_works.cache_clear()


def test_blocks_are_compiled_and_nothing_else(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: compiled.append((type(self), how)))
    Arithmetic(compiled=True).prepared(DiT(NETWORK, (1, 4, 4)))
    assert [(kind.__name__, how) for kind, how in compiled] == [("Block", {"dynamic": True})] * 2
