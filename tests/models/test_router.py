import torch

from atoll.config import NetworkConfig
from atoll.models.router import Router
from tests.models.test_dit import awake

NETWORK = NetworkConfig(width=24, depth=2, heads=2, patch=(2, 2))


def test_a_new_router_knows_nothing():
    router = Router(NETWORK, (1, 4, 4), clusters=5)
    posterior = router(torch.randn(3, 1, 4, 4), torch.rand(3)).softmax(1)
    torch.testing.assert_close(posterior, torch.full((3, 5), 0.2))


def test_every_pixel_time_and_class_can_change_its_mind():
    router = awake(Router(NETWORK, (1, 4, 4), clusters=5, kind="class", classes=2))
    x_t = torch.randn(1, 1, 4, 4, requires_grad=True)
    t, label = torch.tensor([0.5]), torch.tensor([1])
    logits = router(x_t, t, label)
    logits.square().sum().backward()
    assert x_t.grad is not None
    assert (x_t.grad != 0).all()
    assert not torch.allclose(logits, router(x_t, t / 2, label))
    assert not torch.allclose(logits, router(x_t, t, label - 1))


def test_gradients_reach_every_weight():
    router = awake(Router(NETWORK, (1, 4, 4), clusters=5))
    router(torch.randn(4, 1, 4, 4), torch.rand(4)).square().sum().backward()
    assert [
        name for name, p in router.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ] == []
