import math

import torch

from atoll.flow import objectives


def test_velocity_loss_of_a_hand_computed_case():
    x_0, noise = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.0, 5.0]]])
    predicted = torch.tensor([[[1.0, 1.0]]])  # velocity is (-1, 3): errors 2 and -2
    assert objectives.velocity_loss(predicted, x_0, noise).tolist() == [4.0]


def test_the_velocity_loss_is_least_at_the_conditional_mean():
    """The minimiser of the conditional loss is the marginal velocity: its gradient there is zero."""
    g = torch.Generator().manual_seed(0)
    x_0, noise = torch.randn(2, 1000, 1, 3, generator=g, dtype=torch.float64)
    constant = (noise - x_0).mean(0, keepdim=True).requires_grad_()
    objectives.velocity_loss(constant.expand(1000, 1, 3), x_0, noise).mean().backward()
    assert constant.grad is not None
    assert constant.grad.abs().max() < 1e-12


def test_router_loss_is_the_entropy_at_the_posterior_and_more_elsewhere():
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    cluster = torch.arange(3)

    def expected(logits: torch.Tensor) -> float:
        return float((p * objectives.router_loss(logits.expand(3, 3), cluster)).sum())

    entropy = -sum(x * math.log(x) for x in p.tolist())
    assert abs(expected(p.log()) - entropy) < 1e-12
    assert expected(p.log() + torch.tensor([0.1, 0.0, 0.0])) > entropy


def test_guidance_of_one_is_the_conditional_velocity_and_of_zero_the_unconditional():
    c, u = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(objectives.guide(c, u, 1.0), c)
    assert torch.equal(objectives.guide(c, u, 0.0), u)
    torch.testing.assert_close(objectives.guide(c, u, 3.0), 3 * c - 2 * u)
