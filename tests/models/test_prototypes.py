import math

import torch

from atoll.config import NetworkConfig
from atoll.models.prototypes import BINS, Prototypes, Rows
from atoll.models.router import Router

NETWORK = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))


def known(classes=0):
    """Two clusters, the first of two prototypes."""
    source = torch.Generator().manual_seed(0)
    rows = [
        Rows(
            torch.randn(count, 16, generator=source),
            torch.rand(count, generator=source) + 0.1,
            torch.full((count,), 20.0),
            torch.rand(count, classes, generator=source) if classes else None,
        )
        for count in (2, 1)
    ]
    return Prototypes(rows, [0, 1], [0.7, 0.3]).calibrated([0.5 + 0.1 * part for part in range(BINS)])


def by_hand(module, x_t, t, k):
    """log λ_k p_t(x_t | k) of one sample, from the density of each Gaussian."""
    alpha, total = 1 - t, 0.0
    for j in range(3):
        if int(module.owner[j]) == k:
            width = alpha**2 * float(module.variances[j]) + t**2
            away = float((x_t.double() - alpha * module.means[j]).square().sum())
            total += math.exp(float(module.shares[j]) - 0.5 * (away / width + 16 * math.log(width)))
    return math.log(total)


def test_it_is_the_density_of_the_mixture_times_the_temperature_of_its_time():
    module, x_t = known(), torch.randn(1, 16, generator=torch.Generator().manual_seed(1))
    for t in (0.35, 0.95):
        beta = 0.5 + 0.1 * int(t * BINS)
        expected = [beta * by_hand(module, x_t[0], t, k) for k in (0, 1)]
        # The constant that all densities share is left out on both sides.
        torch.testing.assert_close(
            module(x_t, torch.tensor([t])),
            torch.tensor([expected], dtype=torch.float64),
            rtol=1e-6,
            atol=1e-6,
        )


def test_a_new_router_says_what_prototypes_say_and_learns_what_they_do_not():
    router, module = Router(NETWORK, (1, 4, 4), 2, prototypes=3), known()
    router.prototypes.load_state_dict(module.state_dict())
    x_t, t = torch.randn(4, 1, 4, 4), torch.rand(4)
    torch.testing.assert_close(router(x_t, t).softmax(1), module(x_t, t).softmax(1).float())
    router(x_t, t)[:, 0].sum().backward()
    assert router.head.weight.grad.abs().sum() > 0
    assert not any(name.startswith("prototypes") for name, _ in router.named_parameters())


def test_classes_that_are_told_count_and_hidden_ones_do_not():
    module = known(classes=2)
    x_t, t = torch.randn(2, 16), torch.full((2,), 0.9)
    told, hidden = module(x_t, t, torch.tensor([1, 1])), module(x_t, t, torch.tensor([2, 2]))
    assert not torch.allclose(told.softmax(1), hidden.softmax(1))
    torch.testing.assert_close(hidden, module(x_t, t, None))
