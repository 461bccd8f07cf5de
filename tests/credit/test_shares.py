import torch

from atoll.credit import shapley, shares


def test_display_credit_is_the_value_with_the_ensemble_as_target():
    g = torch.Generator().manual_seed(0)
    weights = torch.rand(5, 3, generator=g, dtype=torch.float64).softmax(1)
    apart = torch.randn(3, 5, 2, 2, generator=g, dtype=torch.float64)
    base = torch.randn(5, 2, 2, generator=g, dtype=torch.float64)
    credit = shares.display_credit(weights, apart)
    whole = base + torch.einsum("bk,kb...->b...", weights, apart)
    assert torch.allclose(credit / 4, shapley.shapley(shapley.Game.of(weights, apart, base, whole)))
    assert torch.allclose(credit.sum(1), (whole - base).square().flatten(1).sum(1))


def test_who_exaggerates_takes_the_display():
    """Why it must not be paid by."""
    weights, apart = torch.full((1, 3), 1 / 3), torch.eye(3)[:, None, :]
    honest = shares.display_credit(weights, apart)[0]
    greedy = shares.display_credit(weights, apart * torch.tensor([3.0, 1.0, 1.0])[:, None, None])[0]
    assert honest[0] / honest.sum() < 0.34
    assert greedy[0] / greedy.sum() > 0.8


def test_the_parts_of_a_way_sum_to_one():
    g = torch.Generator().manual_seed(1)
    moved = torch.randn(4, 6, 3, generator=g)
    found = shares.trajectory_shares(moved, moved.sum(0))
    assert torch.allclose(found.sum(1), torch.ones(6), atol=1e-5)
    one = shares.trajectory_shares(torch.stack([moved[0], 0 * moved[0]]), moved[0])
    assert torch.allclose(one, torch.tensor([1.0, 0.0]).expand(6, 2))


def test_routing_shares_are_mean_weights():
    weights = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])
    assert torch.allclose(shares.routing_shares(weights), torch.tensor([[1 / 3, 2 / 3]]))
