import torch
from torch import Tensor, nn

from atoll.flow import solver
from atoll.models.relay import Relay

LOCATIONS, SPREAD = torch.tensor([-2.0, 1.0]), 0.5
"""Two clusters of one number each, as large as each other."""


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        told = torch.zeros(len(x_t)) if condition is None else condition
        return torch.full_like(x_t, self.value) + told[:, None]


class Exact(nn.Module):
    """The velocity of a mixture of Gaussians of one spread: Σ p_k(x_t) (x_t - (1 - t) m_k) s_k - m_k."""

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = means

    def forward(self, x_t: Tensor, t: Tensor, condition: None = None) -> Tensor:
        time = t[:, None]
        variance = ((1 - time) * SPREAD) ** 2 + time**2
        away = x_t - (1 - time) * self.means
        posterior = (-(away**2) / (2 * variance)).softmax(1)
        slope = (time - (1 - time) * SPREAD**2) / variance
        return (posterior * (slope * away - self.means)).sum(1, keepdim=True)


def test_rows_of_one_batch_are_asked_on_their_own_side():
    relay = Relay(Constant(10.0), Constant(20.0), below=0.5)
    t, told = torch.tensor([0.9, 0.1, 0.5, 0.49]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert relay(torch.zeros(4, 1), t, told)[:, 0].tolist() == [11, 22, 13, 24]
    assert relay(torch.zeros(2, 1), torch.tensor([0.5, 1.0]))[:, 0].tolist() == [10, 10]
    assert relay(torch.zeros(2, 1), torch.tensor([0.0, 0.4]))[:, 0].tolist() == [20, 20]


def test_an_expert_and_then_all_data_end_at_the_data():
    """Down to t* each cluster's own velocity, below it that of the mixture: the mixture comes out again."""
    noise = torch.randn(8000, 1, generator=torch.Generator().manual_seed(0))
    everything = Exact(LOCATIONS)
    halves = [
        solver.integrate(Relay(Exact(LOCATIONS[k : k + 1]), everything, below=0.4), part, 100, solver.heun)
        for k, part in enumerate(noise.chunk(2))
    ]
    drawn = torch.cat(halves)
    right = drawn > LOCATIONS.mean()
    assert abs(right.double().mean() - 0.5) < 0.01
    for side, location in ((~right, LOCATIONS[0]), (right, LOCATIONS[1])):
        assert abs(drawn[side].mean() - location) < 0.03
        assert abs(drawn[side].std() - SPREAD) < 0.03
