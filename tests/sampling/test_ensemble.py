import itertools
from functools import partial

import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig, SampleConfig
from atoll.errors import ConfigError
from atoll.flow import draws, mixture, solver
from atoll.models import conditions
from atoll.models.dit import DiT
from atoll.sampling import routing
from atoll.sampling.ensemble import Ensemble, sampling_settings
from atoll.sampling.roster import Roster
from tests.analytic import ExactExpert, ExactRouter, FiniteData, grouped
from tests.models.test_dit import awake, captions

NETWORK = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))


def exact(data: FiniteData) -> Ensemble:
    experts = [ExactExpert(data, k) for k in range(data.clusters)]
    return Ensemble(experts, data.priors.float(), (data.points.shape[1],), ExactRouter(data))


def shares_of(samples: torch.Tensor, data: FiniteData) -> torch.Tensor:
    """Which cluster's point is nearest to each sample."""
    nearest = torch.cdist(samples.double(), data.points).argmin(1)
    return torch.bincount(data.cluster[nearest], minlength=data.clusters) / len(samples)


@pytest.mark.parametrize("strategy", ["auto", "full", "top-1", "top-2", "ancestral"])
def test_one_cluster_is_its_only_expert_bit_for_bit(strategy):
    expert = awake(DiT(NETWORK, (1, 4, 4)))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4))
    with torch.inference_mode():
        noise = draws.sample_noise(7, range(5), (1, 4, 4))
        alone = solver.integrate(expert, noise, 6)
    assert torch.equal(ensemble.sample(5, strategy=strategy, steps=6, seed=7), alone)


def test_full_is_the_velocity_of_all_data():
    data = grouped(3, [4, 9, 2], dims=5, spread=0.3)
    x_t, t = torch.randn(8, 5, dtype=torch.float64), torch.rand(8, dtype=torch.float64) * 0.9 + 0.05
    # posterior() is float32 by design, hence the tolerance
    torch.testing.assert_close(exact(data).velocity(x_t, t), data.velocity(x_t, t), rtol=1e-5, atol=1e-5)


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


def asked(ensemble: Ensemble) -> int:
    return sum(vars(ensemble.experts[k])["asked"] for k in range(len(ensemble.experts)))


def test_no_expert_is_asked_about_a_sample_in_which_it_has_no_weight():
    data = grouped(4, [5, 5, 5, 5], dims=3, spread=0.1)
    ensemble = exact(data)
    ensemble.sample(32, strategy="top-1", steps=5)
    assert asked(ensemble) == 32 * 5
    ensemble = exact(data)
    ensemble.sample(32, strategy="full", steps=5)
    assert asked(ensemble) == 4 * 32 * 5


def test_asking_part_of_the_batch_is_asking_all_of_it():
    experts = [awake(DiT(NETWORK, (1, 4, 4))) for _ in range(3)]
    for k, expert in enumerate(experts):
        expert.head.bias.data += k
    ensemble = Ensemble(experts, torch.ones(3) / 3, (1, 4, 4))
    x_t, t = torch.randn(6, 1, 4, 4), torch.rand(6)
    weights = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [0, 0, 1], [0.2, 0.3, 0.5], [1, 0, 0]])
    every = torch.stack([expert(x_t, t) for expert in experts])
    expected = torch.einsum("bk,kb...->b...", weights, every)
    found, apart = ensemble.weighted(weights, x_t, t, None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(apart, mixture.disagreement(weights, every), atol=1e-5, rtol=1e-4)


class ClassRouter(nn.Module):
    """Class c belongs to cluster c; without a class every cluster is as likely."""

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return torch.eye(3)[:, :2][condition].log()


class Speaker(nn.Module):
    """An expert whose velocity leads any noise to its own constant, or to the class it is told."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        target = self.value + torch.where(condition == 2, 0.0, 0.1 * (condition + 1)).view(-1, 1)
        return (x_t - target) / t.view(-1, 1)


def told() -> Ensemble:
    return Ensemble([Speaker(0.0), Speaker(10.0)], torch.tensor([0.9, 0.1]), (1,), ClassRouter(), classes=2)


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


class Indifferent(nn.Module):
    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x_t), 2)


def test_auto_asks_the_router_how_sure_it_is_at_noise():
    plain = exact(grouped(2, [1, 1], dims=2, spread=0.1))
    assert plain.trace(2, steps=1).strategy == "ancestral"
    certain = told().trace(4, steps=1)
    assert (certain.strategy, certain.certainty) == ("top-1", 1.0)
    unsure = told()
    unsure.router = Indifferent()
    traced = unsure.trace(4, steps=1)
    assert (traced.strategy, traced.certainty) == ("ancestral", 0.5)
    assert told().trace(4, steps=1, strategy="full").strategy == "full"


def test_given_a_class_ancestors_follow_its_counts_and_not_the_router():
    """Class 0 lies in both clusters, 30 to 10, class 1 in the second alone."""
    ensemble = told()
    ensemble.by_class = mixture.given_class(torch.tensor([[30, 0], [10, 60]]), torch.tensor([0.3, 0.7]))
    ensemble.router = None
    drawn = ensemble.trace(4000, label=[0, 1], strategy="ancestral", steps=1, batch=4000).expert
    assert float((drawn[::2] == 0).double().mean()) == pytest.approx(0.75, abs=0.04)  # four deviations
    assert (drawn[1::2] == 1).all()
    alone = ensemble.trace(50, label=[1], strategy="ancestral", steps=1, experts=(0,)).expert
    assert (alone == 0).all(), "where the class has no expert that serves, one that serves is taken"


def test_auto_counts_where_it_can():
    ensemble = told()
    ensemble.by_class = mixture.given_class(torch.tensor([[1, 1], [1, 1]]), torch.tensor([0.5, 0.5]))
    traced = ensemble.trace(4, steps=1)
    assert (traced.strategy, traced.certainty) == ("ancestral", 0.5), "whatever the router believes"


def test_the_oracle_is_told_the_clusters():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    wanted = [2, 0, 1, 2]
    traced = exact(data).trace(4, strategy="oracle", cluster=wanted, steps=20)
    assert traced.expert.tolist() == wanted
    nearest = data.cluster[torch.cdist(traced.x_0.double(), data.points).argmin(1)]
    assert nearest.tolist() == wanted
    with pytest.raises(ConfigError, match="needs the cluster of every sample"):
        exact(data).sample(4, strategy="oracle", cluster=[1])
    with pytest.raises(ConfigError, match="numbered 0 to 2"):
        exact(data).sample(1, strategy="oracle", cluster=[3])


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
    ensemble = exact(data)
    router = ensemble.router
    assert router is not None
    x_0 = data.points.float().repeat(10, 1)
    noise = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    ensemble.band = routing.measure_band(router, x_0, noise, None)
    assert 0.05 < ensemble.band.low < ensemble.band.high <= 1
    asked: list[float] = []
    router.register_forward_pre_hook(lambda _, inputs: asked.append(float(inputs[1][0])))
    some = ensemble.sample(30, strategy="full", steps=50)
    edge = 1e-6  # times are float32 on the way
    inside = {
        round(t, 2) for t in solver.times(50) if ensemble.band.low + edge < t < ensemble.band.high - edge
    }
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
    lean = Ensemble(roster, data.priors.float(), (4,), ExactRouter(data))
    assert torch.equal(lean.sample(24, strategy=strategy, steps=6, batch=8), everyone)
    if strategy == "ancestral":
        assert roster.loads == 4, "each expert is loaded once"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"strategy": "best"}, "unknown strategy 'best'"),
        ({"strategy": "top-0"}, "unknown strategy"),
        ({"steps": 0}, "steps = 0"),
        ({"guidance": 0.5}, "guidance = 0.5"),
        ({"num": -1}, "num = -1"),
        ({"speed": 3}, "unknown sampling setting speed"),
    ],
)
def test_wrong_settings_are_named(wrong, said):
    with pytest.raises(ConfigError, match=said):
        sampling_settings(SampleConfig(), **wrong)


def test_a_class_for_a_run_without_classes_is_refused():
    with pytest.raises(ConfigError, match="not class-conditional"):
        exact(grouped(2, [1, 1], dims=2, spread=0.1)).sample(1, label=3)
    with pytest.raises(ConfigError, match="numbered 0 to 1"):
        told().sample(1, label=2)


def test_strategies_that_need_a_router_say_so():
    ensemble = exact(grouped(2, [1, 1], dims=2, spread=0.1))
    ensemble.router = None
    assert ensemble.sample(2, strategy="ancestral", steps=2).shape == (2, 2)
    with pytest.raises(ConfigError, match="no router"):
        ensemble.sample(2, strategy="full", steps=2)


def test_guidance_by_text_is_the_same_formula():
    expert = awake(DiT(NETWORK, (1, 4, 4), "text", text=6))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), text=6)
    told, x_t, t = captions(2), torch.randn(2, 1, 4, 4), torch.rand(2)
    heard, silent = expert(x_t, t, told), expert(x_t, t, conditions.null(told, 0))
    expected = silent + 3 * (heard - silent)
    torch.testing.assert_close(ensemble.velocity(x_t, t, told, guidance=3.0), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ensemble.velocity(x_t, t), silent, atol=1e-5, rtol=1e-4)


def test_texts_are_taken_in_turn():
    expert = awake(DiT(NETWORK, (1, 4, 4), "text", text=6))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), text=6)
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
    ensemble, num = exact(data), 1000
    samples = ensemble.sample(num, strategy=strategy, experts=[0, 3], steps=40, batch=num)
    shares = shares_of(samples, data)
    assert abs(shares[0] - 0.8) < 4 * (0.8 * 0.2 / num) ** 0.5 + 0.01, shares
    assert shares[1] == shares[2] == 0
    assert ensemble.experts[1].asked == ensemble.experts[2].asked == 0


def test_experts_that_do_not_exist_cannot_serve():
    with pytest.raises(ConfigError, match="numbered 0 to 1"):
        exact(grouped(2, [1, 1], dims=2, spread=0.1)).sample(1, experts=[2])


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

    counted = Ensemble([Counting(data, k) for k in range(3)], data.priors.float(), (4,), ExactRouter(data))
    plain = exact(data)
    for strategy in ("full", "top-1", "top-2"):
        settings = {"steps": 4, "strategy": strategy, "seed": 3}
        together = counted.sample(20, batch=5, **settings)
        torch.testing.assert_close(together, plain.sample(20, batch=64, **settings), atol=1e-5, rtol=1e-5)
    assert max(most) == 5
