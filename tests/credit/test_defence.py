import itertools

import pytest
import torch

from atoll.credit import defence, shapley
from atoll.credit.shapley import Game


def apart(experts: int = 3, batch: int = 60, seed: int = 0) -> torch.Tensor:
    return torch.randn(experts, batch, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def game(d: torch.Tensor, weights: torch.Tensor | None = None) -> Game:
    experts, batch = d.shape[:2]
    even = torch.full((batch, experts), 1 / experts, dtype=torch.float64)
    zero = torch.zeros(batch, 4, dtype=torch.float64)
    return Game.of(even if weights is None else weights, d, zero, zero + 1)


def norms(of: Game) -> torch.Tensor:
    """(batch, experts), as roots of mean squares."""
    return of.pairs.diagonal(dim1=1, dim2=2).sqrt()


def test_an_honest_expert_is_hardly_clipped_and_an_overshooting_one_is():
    honest, cluster = apart(), torch.arange(60) % 3
    greedy = honest.clone()
    greedy[1, cluster != 1] *= 10  # far from the base where others are at home
    clipped = norms(defence.clip(game(greedy), cluster))
    limit = defence.CLIP * norms(game(greedy))[cluster == 1, 1].median()
    assert float(clipped[:, 1].max()) <= float(limit) * (1 + 1e-9)
    left = norms(defence.clip(game(honest), cluster)) / norms(game(honest))
    assert float(left.mean()) > 0.95
    assert float(left.max()) == 1.0


def test_clipping_is_of_the_differences_themselves():
    d = apart()
    d[0, 0] *= 100
    clipped = defence.clip(game(d), torch.zeros(60, dtype=torch.long))
    factors = norms(clipped) / norms(game(d))
    by_hand = game(d * factors.T[:, :, None])
    assert torch.allclose(shapley.shapley(clipped), shapley.shapley(by_hand))
    assert float(factors[0, 0]) < 0.2


def test_medians_are_of_samples_at_the_same_time():
    """All experts ten times as far from the base at one time: nobody is cut back for that."""
    d, cluster, late = apart(), torch.arange(60) % 3, torch.arange(60) < 20
    d[:, late] *= 10
    by_time = norms(defence.clip(game(d), cluster, late.long())) / norms(game(d))
    together = norms(defence.clip(game(d), cluster)) / norms(game(d))
    assert float(by_time[late].mean()) > 0.9
    assert float(together[late].mean()) < 0.6


def test_an_expert_whose_cluster_is_not_here_is_measured_by_the_others():
    d = apart()
    d[2] *= 50
    clipped = norms(defence.clip(game(d), torch.arange(60) % 2))
    assert float(clipped[:, 2].max()) < 3 * float(clipped[:, 0].max())


def test_likeness_is_the_cosine_where_all_have_equal_weight():
    d = apart()
    expected = torch.nn.functional.normalize(d.flatten(1), dim=1)
    assert torch.allclose(defence.likeness(game(d)), expected @ expected.T)


def test_copies_are_found_however_they_are_scaled():
    d = apart()
    copied = torch.cat([d, 0.3 * d[:1] + 1e-3 * apart(1, seed=5)])
    assert defence.copies(defence.likeness(game(copied))) == [(0, 3)]
    assert defence.copies(defence.likeness(game(d))) == []


def test_a_copy_that_looks_different_where_nobody_asks_it_is_found():
    d, at_home = apart(), torch.arange(60) < 20
    copy = d[:1].clone()
    copy[:, ~at_home] = apart(1, seed=9)[:, ~at_home] * 5
    weights = torch.full((60, 4), 0.25, dtype=torch.float64)
    weights[at_home] = torch.tensor([0.49, 0.01, 0.01, 0.49], dtype=torch.float64)
    weights[~at_home] = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    assert defence.copies(defence.likeness(game(torch.cat([d, copy]), weights))) == [(0, 3)]


def test_parts_of_one_cluster_share_its_weight_and_refused_ones_have_none():
    posterior = torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    owner = torch.tensor([0, 1, 0])
    expected = torch.tensor([[0.3, 0.4, 0.3], [0.05, 0.9, 0.05]])
    assert torch.allclose(defence.registered(posterior, owner), expected)
    alone = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]])
    assert torch.allclose(defence.registered(posterior, owner, [2]), alone)


def test_who_is_paid_more_than_missed_is_looked_at():
    values = torch.tensor([1.0, 1.0, -1.0, 0.1, 1.0, 1.0])
    without = torch.tensor([1.1, 0.5, -2.0, -1.0, 1.0, 1.2])
    assert defence.alarms(values, without).tolist() == [False, True, False, True, False, False]
    ratios = defence.ratios(values, without)
    assert float(ratios[0]) == pytest.approx((1 / 1.1) / 1.0)
    assert float(ratios[2]) == 0.0
    assert float(ratios[3]) == float("inf")


def test_nobody_is_looked_at_where_nobody_is_worth_anything():
    assert not bool(defence.alarms(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])).any())


def test_a_part_is_paid_for_what_it_knows_better_than_the_base_of_its_own_cluster():
    """Against losses computed from velocities, row by row; what others say changes nothing."""
    d, cluster, owner = apart(), torch.arange(60) % 3, torch.arange(3)
    paid = shapley.shapley(defence.at_home(game(d), cluster, owner))
    base, target = torch.zeros(60, 4).double(), torch.ones(60, 4).double()
    for k in range(3):
        better = (base - target).square().mean(1) - (base + d[k] - target).square().mean(1)
        assert torch.allclose(paid[:, k], torch.where(cluster == k, better, 0.0), atol=1e-12)
    changed = torch.cat([d[:1], apart(2, seed=8) * 9])
    assert torch.equal(shapley.shapley(defence.at_home(game(changed), cluster, owner))[:, 0], paid[:, 0])


def test_parts_of_one_cluster_share_what_it_pays_as_all_coalitions_would_have_it():
    """Two different parts and a clone of one, in one cluster: Shapley's value by enumeration."""
    d = torch.cat([apart(2), apart(2)[:1]])
    paid = shapley.shapley(defence.at_home(game(d), torch.zeros(60, dtype=torch.long), torch.zeros(3).long()))
    worth = {
        mask: -((sum((d[i] / 3 for i in mask), torch.zeros(60, 4).double()) - 1).square().mean(1))
        for size in range(4)
        for mask in itertools.combinations(range(3), size)
    }
    expected = torch.zeros(60, 3).double()
    for order in itertools.permutations(range(3)):
        for place, i in enumerate(order):
            before, after = (tuple(sorted(order[:end])) for end in (place, place + 1))
            expected[:, i] += (worth[after] - worth[before]) / 6
    assert torch.allclose(paid, expected, atol=1e-10)
    assert torch.allclose(paid[:, 0], paid[:, 2])


def test_a_refused_part_is_not_paid_and_leaves_its_cluster_to_the_other():
    d, cluster, owner = apart(), torch.arange(60) % 2, torch.tensor([0, 1, 1])
    paid = shapley.shapley(defence.at_home(game(d), cluster, owner, [2]))
    assert float(paid[:, 2].abs().max()) == 0.0
    alone = shapley.shapley(defence.at_home(game(d[:2]), cluster, owner[:2]))
    assert torch.allclose(paid[:, :2], alone)
