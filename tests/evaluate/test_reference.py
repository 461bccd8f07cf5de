"""Real samples are drawn in memory that does not grow with the data, and as pictures whatever their unit."""

import tracemalloc
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.data.rules import lottery
from atoll.evaluate.reference import SEED, _lowest, as_seen
from atoll.runs.records import SampleFormat
from tests.evaluate.made import contents_of, pictures, real_of


class Many:
    """Parts of a thousand random ids each, of which every tenth does not count."""

    def __init__(self, parts: int) -> None:
        self.names = [f"part-{number}" for number in range(parts)]

    def ids(self, name: str) -> Any:
        number = int(name.split("-")[1])
        return np.random.default_rng(number).integers(0, 256, (1000, 32), dtype=np.uint8)

    def kept(self, name: str) -> Any:
        return np.arange(1000) % 10 != 0


def test_the_lowest_tickets_of_all_in_their_order() -> None:
    parts: Any = Many(7)
    every = [
        (int(ticket), number, row)
        for number, name in enumerate(parts.names)
        for row, ticket in enumerate(lottery(parts.ids(name), SEED))
        if row % 10
    ]
    for count in (1, 50, 10_000):
        drawn = [tuple(int(value) for value in row) for row in _lowest(parts, count)]
        assert drawn == sorted(every)[:count]


def test_memory_does_not_grow_with_the_data() -> None:
    peaks = []
    for count in (10, 160):
        parts: Any = Many(count)
        tracemalloc.start()
        _lowest(parts, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_pictures_are_judged_as_pixels_whatever_their_unit() -> None:
    x = torch.tensor([[-1.0, 0.0, 1.0, 1.5]])
    for dtype, mean in (("float32", 0.5), ("uint16", 32767.5), ("uint8", 127.5)):
        form = SampleFormat.model_validate({"kind": "image", "dtype": dtype, "mean": (mean,), "std": (mean,)})
        seen = as_seen(x, form)
        assert seen.tolist() == [[0, 128, 255, 255]]


def test_series_keep_their_values_and_videos_of_bytes_become_bytes() -> None:
    x = torch.tensor([[[-2.0, 0.0, 30.0]]])
    series = contents_of((1, 3), kind="series", dtype="float32", mean=10.0, std=5.0)
    assert as_seen(x, series).flatten().tolist() == [0, 10, 160]
    video = contents_of((1, 3, 1, 1), kind="video", mean=100.0, std=10.0)
    seen = as_seen(x.view(1, 1, 3, 1, 1), video)
    assert seen.dtype == torch.uint8
    assert seen.flatten().tolist() == [80, 100, 255]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_a_byte_survives_the_way_to_the_networks_and_back(values: list[int]) -> None:
    stored = torch.tensor(values, dtype=torch.uint8).view(1, 1, 1, -1)
    assert torch.equal(as_seen(stored.float() / 127.5 - 1, contents_of((1, 1, len(values)))), stored)


def test_classes_are_numbers_of_their_names() -> None:
    real = real_of(pictures(4), ["shoe", None, "bag", "shoe"], ("bag", "shoe"))
    assert len(real) == 4
    assert real.classes is not None
    assert real.classes.tolist() == [1, -1, 0, 1]
    assert real_of(pictures(2)).classes is None
