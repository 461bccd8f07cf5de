"""An exact ensemble valued: the game is the one that velocities give, and estimates of it are unbiased."""

import pytest
import torch

from atoll import config
from atoll.credit import defence, estimate, shapley
from atoll.data.store import Batch
from atoll.errors import ConfigError
from atoll.evaluate import ground, held_out, worth
from atoll.flow import path
from atoll.runs import Run
from atoll.sampling.ensemble import Ensemble
from tests.analytic import ExactExpert, ExactRouter, FiniteData, grouped

DATA = grouped(3, [6, 10, 8], dims=4, spread=0.4)


def ensemble_of(data: FiniteData) -> Ensemble:
    experts = [ExactExpert(data, k) for k in range(data.clusters)]
    return Ensemble(experts, data.priors.float(), (4,), ExactRouter(data))


def batch_of(data: FiniteData) -> Batch:
    return Batch(data.points.float(), None, data.cluster)


def run_of(tmp_path, **credit) -> Run:
    return Run(tmp_path, config.validate({"name": "x", "credit": {"num": 240, **credit}}, "a test"))


def played(tmp_path, **credit) -> worth.Played:
    batch = batch_of(DATA)
    base = ground.gaussian(batch.x_0)
    return worth.play(run_of(tmp_path, **credit), ensemble_of(DATA), base, batch)


def test_the_game_is_that_of_the_velocities_it_was_made_of(tmp_path, monkeypatch):
    """With the plain target everywhere, row by row, whatever is asked at once."""
    monkeypatch.setattr(worth, "NOISY", 2.0)
    run, batch = run_of(tmp_path, batch=240), batch_of(DATA)
    base, whole = ground.gaussian(batch.x_0), ensemble_of(DATA)
    game = worth.play(run, whole, base, batch).game
    plan = held_out.plan(run, len(batch.x_0))
    x_0, noise = batch.x_0[plan.sample], held_out.noise(run, slice(0, 240), (4,))
    x_t = path.point(x_0, noise, plan.t)
    v = torch.stack([whole.experts[k](x_t, plan.t, None) for k in range(3)])
    b = base.velocity(x_t, plan.t, None)
    direct = shapley.Game.of(whole.posterior(x_t, plan.t), v - b, b, noise - x_0)
    assert torch.allclose(shapley.shapley(game), shapley.shapley(direct).double(), atol=1e-4, rtol=1e-4)
    assert torch.allclose(game.base, direct.base.double(), atol=1e-5)


def test_what_is_asked_at_once_changes_nothing(tmp_path):
    one, other = played(tmp_path, batch=60), played(tmp_path, batch=240)
    assert torch.allclose(shapley.shapley(one.game), shapley.shapley(other.game), atol=1e-5)
    assert torch.equal(one.cluster, other.cluster)


def test_each_expert_is_asked_once_about_every_row_so_that_cost_is_linear(tmp_path):
    for clusters in (2, 8, 32):
        data = grouped(clusters, [3] * clusters, dims=4, spread=0.4)
        experts = [ExactExpert(data, k) for k in range(clusters)]
        whole = Ensemble(experts, data.priors.float(), (4,), ExactRouter(data))
        batch = batch_of(data)
        worth.play(run_of(tmp_path, num=64), whole, ground.gaussian(batch.x_0), batch)
        assert sum(expert.asked for expert in experts) == 64 * clusters


def test_exact_experts_gain_and_their_values_sum_to_it(tmp_path):
    game = played(tmp_path, num=2000).game
    values = estimate.estimate(shapley.shapley(game))
    assert bool((values.mean > 0).all())
    assert float(values.mean.sum()) == pytest.approx(float(shapley.gain(game).mean()), rel=1e-6)
    assert float(shapley.losses(game).mean()) < float(game.base.mean())


def test_hundreds_of_small_estimates_are_unbiased(tmp_path):
    """Their mean is a large one's, within the error of both; and each error is that of repetition."""
    small = [played(tmp_path, num=80, epoch=epoch, seed=5) for epoch in range(400)]
    means = torch.stack([shapley.shapley(one.game).mean(0) for one in small])
    large = estimate.estimate(shapley.shapley(played(tmp_path, num=30_000, batch=10_000, seed=6).game))
    error = (means.var(0) / len(means) + large.error**2).sqrt()
    assert bool(((means.mean(0) - large.mean).abs() < 3.5 * error).all())
    assert float((error / large.mean).max()) < 0.035, "or else it would show nothing"


def test_the_expected_target_scatters_less_and_means_the_same(tmp_path, monkeypatch):
    smooth = shapley.shapley(played(tmp_path, num=4000, batch=4000).game)
    monkeypatch.setattr(worth, "NOISY", 2.0)
    plain = shapley.shapley(played(tmp_path, num=4000, batch=4000).game)
    error = (plain - smooth).std(0) / 4000**0.5
    assert bool(((plain - smooth).mean(0).abs() < 4 * error).all())
    assert float(smooth.var(0).sum()) < 0.97 * float(plain.var(0).sum())


def test_the_expected_target_of_a_sample_is_that_of_its_own_cluster(tmp_path, monkeypatch):
    """Or else what is paid at home would be for samples of others: near the noise nobody can tell them."""
    smooth = played(tmp_path, num=4000, batch=4000)
    monkeypatch.setattr(worth, "NOISY", 2.0)
    plain = played(tmp_path, num=4000, batch=4000)
    owner = torch.arange(smooth.game.weights.shape[1])
    one, other = (
        shapley.shapley(defence.at_home(each.game, each.cluster, owner)) for each in (smooth, plain)
    )
    error = (one - other).std(0) / 4000**0.5
    assert bool(((one - other).mean(0).abs() < 4 * error).all())
    assert float((error / one.mean(0)).max()) < 0.03, "or else it would show nothing"


def test_without_a_router_nobody_knows_who_answers(tmp_path):
    whole = ensemble_of(DATA)
    lonely = Ensemble(whole.experts, whole.priors, whole.shape)
    with pytest.raises(ConfigError, match="atoll router"):
        worth.play(run_of(tmp_path), lonely, ground.gaussian(DATA.points.float()), batch_of(DATA))


def test_progress_is_told_to_the_end(tmp_path):
    counts: list[tuple[int, int]] = []
    batch = batch_of(DATA)
    base = ground.gaussian(batch.x_0)
    worth.play(
        run_of(tmp_path, batch=100),
        ensemble_of(DATA),
        base,
        batch,
        lambda done, of: counts.append((done, of)),
    )
    assert counts == [(100, 240), (200, 240), (240, 240)]
