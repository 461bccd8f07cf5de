import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from atoll import threads
from atoll.config import NetworkConfig
from atoll.errors import ConfigError
from atoll.flow import draws, solver
from atoll.models.dit import DiT
from atoll.sampling import routing
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.roster import Roster
from atoll.sampling.sampler import Sampler
from tests.analytic import ExactExpert, ExactRouter, FiniteData, grouped
from tests.models.test_dit import awake, captions
from tests.sampling.known import exact, told
from tests.thorough import often

NETWORK = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))


def shares_of(samples: torch.Tensor, data: FiniteData) -> torch.Tensor:
    """Which cluster's point is nearest to each sample."""
    nearest = torch.cdist(samples.double(), data.points).argmin(1)
    return torch.bincount(data.cluster[nearest], minlength=data.clusters) / len(samples)


@pytest.mark.parametrize("strategy", ["auto", "full", "top-1", "top-2", "ancestral"])
def test_one_cluster_is_its_only_expert_bit_for_bit(strategy):
    expert = awake(DiT(NETWORK, (1, 4, 4)))
    ensemble = Sampler(Ensemble([expert], torch.ones(1), (1, 4, 4)))
    with torch.inference_mode():
        noise = draws.sample_noise(7, range(5), (1, 4, 4))
        alone = solver.integrate(expert, noise, 6)
    assert torch.equal(ensemble.sample(5, strategy=strategy, steps=6, seed=7), alone)


def test_sampling_reproduces_cluster_shares_unless_it_is_greedy():
    """Ancestral and full sampling keep the shares of unequal clusters; top-1 favours the largest."""
    data = grouped(4, [60, 25, 10, 5], dims=8, spread=0.05)
    ensemble, priors, num = exact(data), data.priors.float(), 2000
    sampling_error = 4 * (priors * (1 - priors) / num).sqrt()  # four standard deviations
    for strategy in ("ancestral", "full"):
        shares = shares_of(ensemble.sample(num, strategy=strategy, steps=40, batch=num), data)
        assert ((shares - priors).abs() <= sampling_error + 0.01).all(), (strategy, shares)
    greedy = shares_of(ensemble.sample(num, strategy="top-1", steps=40, batch=num), data)
    assert greedy[0] - priors[0] > 5 * sampling_error[0], greedy


def asked(sampler: Sampler) -> int:
    experts = sampler.ensemble.experts
    return sum(vars(experts[k])["asked"] for k in range(len(experts)))


def test_no_expert_is_asked_about_a_sample_in_which_it_has_no_weight():
    data = grouped(4, [5, 5, 5, 5], dims=3, spread=0.1)
    ensemble = exact(data)
    ensemble.sample(32, strategy="top-1", steps=5)
    assert asked(ensemble) == 32 * 5
    ensemble = exact(data)
    ensemble.sample(32, strategy="full", steps=5)
    assert asked(ensemble) == 4 * 32 * 5


@pytest.mark.parametrize("strategy", ["auto", "top-1", "ancestral", "full"])
def test_a_class_reaches_router_and_experts(strategy):
    samples = told().sample(4, label=[0, 1], strategy=strategy, steps=3)[:, 0]
    torch.testing.assert_close(samples, torch.tensor([0.1, 10.2, 0.1, 10.2]))


def test_guidance_pushes_away_from_the_unconditional_velocity():
    """Both velocities point at constants, so s-guidance points at u + s (c - u); s = 1 is no guidance."""
    ensemble = told()
    guided = ensemble.sample(2, label=0, strategy="top-1", steps=1, guidance=3.0)[:, 0]
    torch.testing.assert_close(guided, torch.tensor([0.3, 0.3]))
    plain = ensemble.sample(2, label=0, strategy="top-1", steps=1, guidance=1.0)[:, 0]
    torch.testing.assert_close(plain, torch.tensor([0.1, 0.1]))


def test_classes_take_turns_by_default():
    samples = told().sample(4, strategy="top-1", steps=2)[:, 0]
    torch.testing.assert_close(samples, torch.tensor([0.1, 10.2, 0.1, 10.2]))


def test_samples_do_not_depend_on_number_or_batch():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    few = exact(data).sample(3, seed=1, steps=4)
    many = exact(data).sample(11, seed=1, steps=4, batch=5)
    torch.testing.assert_close(few, many[:3], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(few, exact(data).sample(3, seed=2, steps=4))


def test_shares_say_who_made_what():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    traced = exact(data).trace(16, strategy="ancestral", steps=3)
    torch.testing.assert_close(traced.shares.sum(1), torch.ones(16))
    nearest = data.cluster[torch.cdist(traced.x_0.double(), data.points).argmin(1)]
    assert torch.equal(nearest, traced.expert)


def test_provenance_tells_weights_switches_and_disagreement():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    traced = exact(data).trace(8, strategy="full", steps=10)
    assert traced.weights.shape == (10, 8, 3)
    assert traced.times == pytest.approx(solver.times(10)[:-1])
    torch.testing.assert_close(traced.weights.sum(2), torch.ones(10, 8))
    assert traced.disagreement[0].min() > 0, "at noise experts differ"
    assert traced.disagreement[-1].max() < 1e-3, "near data one expert has all the weight"
    leading = traced.weights.argmax(2)
    assert traced.switches.tolist() == [
        sum(a != b for a, b in itertools.pairwise(row)) for row in leading.T.tolist()
    ]
    alone = exact(data).trace(8, strategy="ancestral", steps=10)
    assert alone.disagreement.max() < 1e-5
    assert alone.switches.max() == 0


def test_inside_its_band_the_router_is_asked_and_outside_it_is_not():
    data = grouped(4, [5, 5, 5, 5], dims=16, spread=0.02)
    router = exact(data).ensemble.router
    assert router is not None
    x_0 = data.points.float().repeat(10, 1)
    noise = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    band = routing.measure_band(router, x_0, noise, None)
    assert 0.05 < band.low < band.high <= 1
    ensemble = Sampler(replace(exact(data).ensemble, router=router, band=band))
    asked: list[float] = []
    router.register_forward_pre_hook(lambda _, inputs: asked.append(float(inputs[1][0])))
    some = ensemble.sample(30, strategy="full", steps=50)
    inside = {round(t, 2) for t in solver.times(50) if band.low <= t <= band.high}
    assert inside <= {round(t, 2) for t in asked}
    assert len(asked) < 45
    asked.clear()
    every = ensemble.sample(30, strategy="full", steps=50, band=False)
    assert len(asked) == 50
    torch.testing.assert_close(some, every, atol=1e-4, rtol=0)


@pytest.mark.parametrize("strategy", ["ancestral", "top-1", "full"])
def test_one_resident_expert_makes_the_same_samples(strategy):
    data = grouped(4, [5, 5, 5, 5], dims=4, spread=0.1)
    everyone = exact(data).sample(24, strategy=strategy, steps=6, batch=8)
    roster = Roster([partial(ExactExpert, data, k) for k in range(4)], resident=1)
    lean = Sampler(Ensemble(roster, data.priors.float(), (4,), ExactRouter(data)))
    assert torch.equal(lean.sample(24, strategy=strategy, steps=6, batch=8), everyone)
    if strategy == "ancestral":
        assert roster.loads == 4, "each expert is loaded once"


def test_strategies_that_need_a_router_say_so():
    ensemble = Sampler(replace(exact(grouped(2, [1, 1], dims=2, spread=0.1)).ensemble, router=None))
    assert ensemble.sample(2, strategy="ancestral", steps=2).shape == (2, 2)
    with pytest.raises(ConfigError, match="no router"):
        ensemble.sample(2, strategy="full", steps=2)


def test_texts_are_taken_in_turn():
    expert = awake(DiT(NETWORK, (1, 4, 4), "text", text=6))
    ensemble = Sampler(Ensemble([expert], torch.ones(1), (1, 4, 4), text=6))
    told = captions(2)
    three = ensemble.sample(3, text=told, steps=2, batch=2)
    alone = ensemble.sample(3, text=told[slice(0, 1)], steps=2)
    torch.testing.assert_close(three[[0, 2]], alone[[0, 2]])
    assert not torch.allclose(three[1], alone[1])


@pytest.mark.parametrize(
    "strategy", ["full", "ancestral", "sample-1", "sample-2", "threshold-0.001", "nucleus-1"]
)
def test_every_unbiased_strategy_serves_a_subset_exactly(strategy):
    """Experts 0 and 3 alone: the shares are those of their data, and no other expert is asked."""
    data = grouped(4, [60, 25, 10, 15], dims=8, spread=0.05)
    ensemble, num = exact(data), often(1000, 300)
    samples = ensemble.sample(num, strategy=strategy, experts=[0, 3], steps=20, batch=num)
    shares = shares_of(samples, data)
    assert abs(shares[0] - 0.8) < 4 * (0.8 * 0.2 / num) ** 0.5 + 0.01, shares
    assert shares[1] == shares[2] == 0
    experts = ensemble.ensemble.experts
    assert vars(experts[1])["asked"] == vars(experts[2])["asked"] == 0


def test_guidance_acts_in_its_interval_only():
    plain = told().sample(2, label=0, strategy="top-1", steps=4)
    never = told().sample(2, label=0, strategy="top-1", steps=4, guidance=3.0, guided=(0.9, 0.91))
    always = told().sample(2, label=0, strategy="top-1", steps=4, guidance=3.0)
    assert torch.equal(plain, never)
    assert not torch.allclose(plain, always)
    # from t = 0.5 on, targets are exact in the last step, whatever came before
    late = told().sample(2, label=0, strategy="top-1", steps=4, guidance=3.0, guided=(0.0, 0.5))
    torch.testing.assert_close(late, always)


@pytest.mark.parametrize("strategy", ["sample-1", "nucleus-0.9"])
def test_drawing_per_step_is_repeatable(strategy):
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    few = exact(data).sample(3, strategy=strategy, steps=5)
    many = exact(data).sample(7, strategy=strategy, steps=5, batch=4)
    torch.testing.assert_close(few, many[:3], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("solver_name", ["euler", "heun", "dpm++"])
def test_every_solver_reaches_the_data(solver_name):
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    samples = exact(data).sample(20, solver=solver_name, strategy="full", steps=60)
    assert torch.cdist(samples.double(), data.points).min(1).values.max() < 0.05


def test_no_expert_is_asked_about_more_than_a_batch_at_once():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    most: list[int] = []

    class Counting(ExactExpert):
        def forward(self, x_t, t, condition=None):
            most.append(len(x_t))
            return super().forward(x_t, t, condition)

    experts = [Counting(data, k) for k in range(3)]
    counted = Sampler(Ensemble(experts, data.priors.float(), (4,), ExactRouter(data)))
    plain = exact(data)
    for strategy in ("full", "top-1", "top-2"):
        settings = {"steps": 4, "strategy": strategy, "seed": 3}
        together = counted.sample(20, batch=5, **settings)
        torch.testing.assert_close(together, plain.sample(20, batch=64, **settings), atol=1e-5, rtol=1e-5)
    assert max(most) == 5


def test_samples_come_batch_by_batch():
    sampler = exact(grouped(3, [4, 4, 4], dims=4, spread=0.2))
    asked = sampler.request(10**9, strategy="full", steps=2, batch=2)
    stream = sampler.stream(asked)
    some = [next(stream) for _ in range(3)]
    assert [list(indices) for indices, _ in some] == [[*range(n, n + 6)] for n in (0, 6, 12)]
    whole = sampler.sample(18, strategy="full", steps=2, batch=2)
    assert torch.equal(torch.cat([samples.x_0 for _, samples in some]), whole)
    assert not torch.is_inference_mode_enabled(), "between batches the world is as it was"


def test_progress_counts_samples():
    seen = []
    sampler = exact(grouped(1, [4], dims=4, spread=0.2))
    sampler.sample(5, steps=2, batch=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(("product", "seen"), [(1e5, 1), (1e9, 2), (None, 2)])
def test_a_small_network_gets_one_thread(monkeypatch, product, seen):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    counted: list[int] = []

    class Counting(ExactExpert):
        def forward(self, x_t, t, condition=None):
            counted.append(torch.get_num_threads())
            return super().forward(x_t, t, condition)

    data = grouped(1, [4], dims=4, spread=0.2)
    torch.set_num_threads(2)
    Sampler(Ensemble([Counting(data, 0)], torch.ones(1), (4,), product=product)).sample(5, steps=2)
    assert set(counted) == {seen}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
