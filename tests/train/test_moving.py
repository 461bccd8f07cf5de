"""What goes to a device stays readable on the CPU."""

import torch

from atoll.data.store import Batch
from atoll.flow import draws
from atoll.train import moving
from tests.pretend_gpu import GPU, pretended_gpu

SIZE = 6


def batch() -> Batch:
    return Batch(torch.randn(SIZE, 1, 4, 4), torch.arange(SIZE), torch.arange(SIZE) % 3)


def test_rows_are_moved_without_waiting_and_clusters_are_kept_here():
    with pretended_gpu() as gpu:
        whole = batch()
        part = moving.to_device(whole, slice(2, 5), GPU)
        assert {value.device.type for value in (part.x_0, part.label, part.cluster)} == {"cuda"}
        assert part.cluster_on_cpu.tolist() == [2, 0, 1]
        assert not gpu.waits, gpu.told()
        assert part.label.tolist() == [2, 3, 4]


def test_draws_can_be_read_on_the_cpu():
    with pretended_gpu() as gpu:
        drawn = draws.training_draws(0, "job", 0, (SIZE, 1, 4, 4), 0.5)
        part = moving.draws_to_device(drawn, slice(2, 5), GPU)
        assert {value.device.type for value in part} == {"cuda"}
        here = moving.on_cpu(part)
        assert all(torch.equal(one, all_rows[2:5]) for one, all_rows in zip(here, drawn, strict=True))
        assert not gpu.waits, gpu.told()
    assert moving.on_cpu(drawn) is drawn
