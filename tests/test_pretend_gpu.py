"""The GPU on paper refuses what a real one refuses, and notes what a real one is waited for."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.pretend_gpu import DeviceError, pretended_gpu


def cuda(*shape: int, **settings: Any) -> torch.Tensor:
    return torch.ones(shape, device="cuda", **settings)


def adamw(count: torch.Tensor) -> None:
    parameter, gradient, first, second = ([cuda(3)] for _ in range(4))
    settings: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adamw_(
        parameter, gradient, first, second, [], [count], lr=0.1, amsgrad=False, maximize=False, **settings
    )


REFUSED = {
    "add": lambda: cuda(3) + torch.ones(3),
    "a number of the GPU and rows of the CPU": lambda: cuda() + torch.ones(3),
    "embedding": lambda: F.embedding(torch.zeros(3, dtype=torch.long), cuda(4, 2)),
    "the CPU indexed by the GPU": lambda: torch.ones(5)[torch.zeros(2, dtype=torch.long, device="cuda")],
    "rows of the CPU put into the GPU": lambda: cuda(5).index_put_((cuda(2).long(),), torch.ones(2)),
    "cat": lambda: torch.cat([cuda(3), torch.ones(3)]),
    "stack of numbers": lambda: torch.stack([cuda(), torch.ones(())]),
    "searchsorted": lambda: torch.searchsorted(cuda(3, 4), torch.ones(3, 1)),
    "numpy": lambda: cuda(3).numpy(),
    "where": lambda: torch.where(torch.ones(3, dtype=torch.bool), 5, cuda(3)),
    "loss": lambda: F.cross_entropy(cuda(3, 4), torch.zeros(3, dtype=torch.long)),
    "weights of the CPU": lambda: nn.Linear(3, 4)(cuda(2, 3)),
    "counts of an optimiser": lambda: adamw(torch.zeros(())),
    "backward": lambda: (cuda(3) * cuda(3, requires_grad=True)).backward(torch.ones(3)),
    "pinned": lambda: cuda(3).pin_memory(),
}

FINE = {
    "a number of the CPU": lambda: cuda(3) * torch.tensor(2.0),
    "a module": lambda: nn.Linear(3, 4, device="cuda")(cuda(2, 3)).relu().sum().backward(),
    "from pinned memory": lambda: torch.ones(3).pin_memory().to("cuda", non_blocking=True) + cuda(3),
    "new on the same device": lambda: cuda(3).new_zeros(3) + torch.zeros_like(cuda(3)) + cuda(3),
    "counts of an optimiser": lambda: adamw(cuda()),
    "a constant": lambda: torch.full((3,), 2.0, device="cuda") + torch.arange(3, device="cuda"),
}

WAITED = {
    "item": lambda: cuda().item(),
    "bool": lambda: bool(cuda()),
    "float": lambda: float(cuda(3)[0]),
    "list": lambda: cuda(3).tolist(),
    "cpu": lambda: cuda(3).cpu(),
    "nonzero": lambda: cuda(3).nonzero(),
    "boolean index": lambda: cuda(3)[cuda(3) > 0],
    "boolean assignment": lambda: cuda(3).index_put_((cuda(3) > 0,), torch.tensor(1.0)),
    "index from the CPU": lambda: cuda(3)[torch.tensor([0, 1])],
    "not pinned": lambda: torch.ones(3).to("cuda", non_blocking=True),
    "blocking": lambda: torch.ones(3).pin_memory().to("cuda"),
    "from a list": lambda: torch.tensor([1, 2], device="cuda"),
    "copied": lambda: torch.empty(3).copy_(cuda(3), non_blocking=True),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_a_gpu_refuses(case):
    with pretended_gpu(), pytest.raises(DeviceError):
        case()


@pytest.mark.parametrize("case", FINE.values(), ids=FINE)
def test_what_is_fine_does_not_wait(case):
    with pretended_gpu() as gpu:
        case()
    assert not gpu.waits, gpu.told()


@pytest.mark.parametrize("case", WAITED.values(), ids=WAITED)
def test_what_waits(case):
    with pretended_gpu() as gpu:
        case()
    assert sum(gpu.waits.values()) == 1, gpu.told()


@pytest.mark.parametrize("case", [WAITED[name] for name in ("item", "bool", "float", "nonzero", "cpu")])
def test_inference_mode_waits_alike(case):
    """There whole operations are seen that are taken apart elsewhere."""
    with pretended_gpu() as gpu, torch.inference_mode():
        case()
        nn.Linear(3, 4, device="cuda", dtype=torch.bfloat16)(cuda(2, 3, dtype=torch.bfloat16))
    assert sum(gpu.waits.values()) == 1, gpu.told()
    assert gpu.products == {torch.bfloat16: 1}


def test_tensors_say_where_they_are():
    with pretended_gpu():
        assert torch.cuda.is_available()
        one = torch.ones(2, device="cuda")
        for value in (
            one,
            one + 1,
            one[0],
            one.view(2, 1),
            torch.ones(2).to("cuda"),
            nn.Linear(2, 2).cuda().bias,
        ):
            assert value.device.type == "cuda"
            assert value.is_cuda
        assert one.cpu().device.type == torch.ones(2).device.type == "cpu"
    assert one.device.type == "cpu"


def test_backward_is_watched():
    """The gradient of a product is another product, here with a tensor that has moved meanwhile."""

    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * torch.ones(3)

    with pretended_gpu():
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = Forgetful.apply(x).sum()
        with pytest.raises(DeviceError, match=r"mul.*cuda\[3\], cpu\[3\]"):
            torch.autograd.backward(y)


def test_a_copy_is_not_read_before_it_has_arrived():
    with pretended_gpu() as gpu:
        pinned = torch.empty(3, pin_memory=True)
        pinned.copy_(torch.ones(3, device="cuda"), non_blocking=True)
        with pytest.raises(DeviceError, match="nobody has waited for"):
            pinned.sum()
        torch.cuda.Event().synchronize()
        assert pinned.sum() == 3
        assert not gpu.waits


def test_what_is_exchanged_is_on_the_gpu():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pretended_gpu():
            dist.all_reduce(torch.ones(2, device="cuda"))
            with pytest.raises(DeviceError, match=r"allreduce_.*cpu\[2\]"):
                dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()
