"""What is paid for by as few questions as do: the same value as in the whole game, its error, its cost."""

import pytest
import torch

from atoll.credit import defence, shapley
from atoll.evaluate import ground, home
from atoll.sampling.ensemble import Ensemble
from tests.analytic import ExactExpert, ExactRouter, grouped
from tests.evaluate.test_worth import DATA, batch_of, ensemble_of, played, run_of


def asked(tmp_path, ensemble=None, budget=1e12, batch=None, **credit):
    whole, batch = ensemble or ensemble_of(DATA), batch or batch_of(DATA)
    settings = {"clip": 1e9, "bins": 4, "batch": 4000, **credit}
    base = ground.gaussian(batch.x_0)
    price = home.Price(100.0, 10, 4, budget)
    return home.Pass(run_of(tmp_path, **settings), whole, base, batch, price)


def test_values_are_those_of_the_game_in_which_clusters_are_known(tmp_path):
    paid = asked(tmp_path, precision=0.02).asked()
    whole = played(tmp_path, num=40_000, batch=40_000, seed=3)
    rows = shapley.shapley(defence.at_home(whole.game, whole.cluster, torch.arange(3)))
    mean, error = rows.mean(0), rows.std(0) / len(rows) ** 0.5
    assert [one.number for one in paid] == [0, 1, 2]
    for one in paid:
        far = abs(one.value - float(mean[one.number]))
        assert far < 4 * (one.error**2 + float(error[one.number]) ** 2) ** 0.5
        assert one.rows > 100, "few samples are few witnesses, however often they are looked at"


@pytest.mark.thorough
def test_small_estimates_are_unbiased_and_their_errors_those_of_repetition(tmp_path):
    """Also where rows are so few that what controls explain is hardly known."""
    small = [asked(tmp_path, budget=0.0, epoch=epoch).asked() for epoch in range(120)]
    values = torch.tensor([[one.value for one in paid] for paid in small])
    errors = torch.tensor([[one.error for one in paid] for paid in small])
    large = torch.tensor([one.value for one in asked(tmp_path, precision=0.01, epoch=999).asked()])
    error = (values.var(0) / len(values)).sqrt() + 0.01 * large
    assert bool(((values.mean(0) - large).abs() < 3.5 * error).all())
    assert (values.var(0) / errors.square().mean(0)).sqrt().tolist() == pytest.approx([1, 1, 1], abs=0.3)


def test_a_row_asks_one_part_so_that_cost_is_linear(tmp_path):
    """Rows of 2, 8 and 32 parts: each is asked about its own cluster alone."""
    for clusters in (2, 8, 32):
        data = grouped(clusters, [3] * clusters, dims=4, spread=0.4)
        experts = [ExactExpert(data, k) for k in range(clusters)]
        whole = Ensemble(experts, data.priors.float(), (4,), ExactRouter(data))
        one = asked(tmp_path, whole, 0.0, batch_of(data))
        paid = one.asked()
        assert [part.rows for part in paid] == [4 * home.FEWEST] * clusters
        assert [expert.asked for expert in experts] == [4 * home.FEWEST] * clusters
        assert one.flops == one.price.of(4 * home.FEWEST) * clusters


def test_the_budget_is_kept_and_goes_where_it_is_needed(tmp_path):
    free = asked(tmp_path, precision=0.01)
    wanted = sum(one.rows for one in free.asked())
    short = asked(tmp_path, precision=0.01, budget=free.price.of(wanted // 3))
    paid = short.asked()
    assert short.flops <= short.price.budget
    assert sum(one.rows for one in paid) > 0.5 * wanted / 3, "and used"


def test_controls_take_scatter_away(tmp_path, monkeypatch):
    with_them = asked(tmp_path, precision=0.02)
    with_them.asked()
    monkeypatch.setattr(
        home.Pass, "_controls", lambda self, own, sample, t, noise: torch.randn(len(t), 3).double()
    )
    without = asked(tmp_path, precision=0.02)
    without.asked()
    assert with_them.flops < 0.7 * without.flops


def test_a_part_that_is_gone_or_at_home_nowhere_is_not_asked(tmp_path):
    from dataclasses import replace

    whole = replace(ensemble_of(DATA), absent=frozenset({1}))
    batch = batch_of(DATA)
    batch = replace(batch, cluster=torch.where(batch.cluster == 2, 1, batch.cluster))
    assert [one.number for one in asked(tmp_path, whole, 0.0, batch).asked()] == [0]


def test_what_is_said_too_loud_is_clipped(tmp_path):
    whole, base = ensemble_of(DATA), ground.gaussian(batch_of(DATA).x_0)
    quiet = asked(tmp_path, whole, precision=0.05)
    quiet.asked()
    loud = asked(tmp_path, whole, precision=0.05, clip=1.0)
    loud.asked()
    for one, other in zip(quiet.homes, loud.homes, strict=True):
        same = min(one.asked, other.asked, 16)
        assert torch.equal(one.rows["square"][:same], other.rows["square"][:same])
    assert base.network is False
    assert float(loud._known(loud.homes[0]).mean) != float(quiet._known(quiet.homes[0]).mean)
