import time

import pytest
import torch
from benchmarks._card import Sized

from benchmarks import _card

GB = 1e9


def test_a_card_gets_the_largest_network_that_it_trains():
    sizes = [_card.sized(gigabytes * GB) for gigabytes in (0.5, 4, 12, 24, 80, 200)]
    order = ["S", "B", "L", "XL"]
    assert [order.index(one.size) for one in sizes] == sorted(order.index(one.size) for one in sizes)
    assert sizes[0].size == "S"
    assert sizes[-1] == Sized("XL", 256)


@pytest.mark.parametrize("gigabytes", [8, 16, 24, 40, 80])
def test_what_is_chosen_fits_by_the_plan(gigabytes):
    assert _card.needed(_card.sized(gigabytes * GB)) <= _card.ROOM * gigabytes * GB


def test_a_card_that_is_full_gets_one_sample():
    assert _card.sized(1.0) == Sized("S", 1)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 3090", 71),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-32GB", 125),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
    ],
)
def test_the_data_sheet_of_what_torch_calls_a_card(name, teraflops):
    assert _card.sheet(name) == teraflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA GeForce GTX 1080", "Abacus", ""])
def test_an_unknown_card_has_none(name):
    assert _card.sheet(name) is None


def test_times_are_the_best_of_several():
    ticks = iter([0.0, 3.0, 10.0, 11.0])
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(ticks))
        assert _card.seconds(lambda: calls.append(1), torch.device("cpu"), repeats=2) == 1.0
    assert len(calls) == 2


def test_a_gpu_is_waited_for_before_and_after(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.append("wait"))
    _card.seconds(lambda: seen.append("work"), torch.device("cuda", 0))
    assert seen == ["wait", "work", "wait"]


def test_a_peak_is_measured():
    assert _card.peak("float32", torch.device("cpu"), repeats=1) > 0
