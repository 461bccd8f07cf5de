"""Updates beside each other, by hand and by angles that are known."""

import math

import pytest
import torch

from atoll.net.verification import admission, updates
from atoll.net.verification.comparison import UNLIKE

COUNT = "optimiser/step/w"


def state(weights, average=None, count=1.0, moment=None):
    weights = torch.as_tensor(weights, dtype=torch.float32)
    tensors = {"model/w": weights, "ema/w": weights if average is None else torch.as_tensor(average)}
    tensors[COUNT] = torch.tensor(count)
    if moment is not None:
        tensors["optimiser/exp_avg/w"] = torch.as_tensor(moment)
    return tensors


def test_a_right_angle_and_unchanged_weights_by_hand():
    before, truth = state([10.0, 10.0]), state([10.0, 11.0])
    aside = updates.compare(before, state([11.0, 10.0]), truth)
    assert aside.kinds["model"].relative == pytest.approx(math.sqrt(2))
    assert aside.kinds["model"].cosine == pytest.approx(0)
    still = updates.compare(before, before, truth)
    assert still.relative == 1.0
    assert still.cosine == 0.0
    half = updates.compare(before, state([10.0, 10.5]), truth)
    assert (half.relative, half.cosine) == pytest.approx((0.5, 1.0))
    twice = updates.compare(before, state([10.0, 12.0]), truth)
    assert (twice.relative, twice.cosine) == pytest.approx((1.0, 1.0))


def test_the_same_is_equal_bit_for_bit():
    before, truth = state([0.0, 0.0]), state([0.1, 0.2])
    same = updates.compare(before, state([0.1, 0.2]), truth)
    assert same.equal
    assert same.counts
    assert (same.relative, same.cosine) == (0.0, 1.0)
    near = updates.compare(before, state([0.1, 0.2 + 1e-7]), truth)
    assert not near.equal
    assert 0 < near.relative < 1e-6


def test_averages_and_moments_are_looked_at_apart():
    before = state([0.0, 0.0], [0.0, 0.0], moment=[0.0, 0.0])
    truth = state([1.0, 0.0], [0.5, 0.0], moment=[0.0, 2.0])
    swapped = updates.compare(before, {**truth, "ema/w": torch.tensor([0.0, 0.5])}, truth)
    assert swapped.kinds["model"].relative == 0
    assert swapped.kinds["ema"].relative == pytest.approx(math.sqrt(2))
    assert swapped.relative == pytest.approx(math.sqrt(2))
    moments = updates.compare(before, {**truth, "optimiser/exp_avg/w": torch.zeros(2)}, truth)
    assert moments.kinds["exp_avg"].relative == 1.0


def test_counters_are_equal_or_not():
    before, truth = state([0.0, 0.0], count=0.0), state([1.0, 0.0], count=4.0)
    comparison = updates.compare(before, state([1.0, 0.0], count=2.0), truth)
    assert not comparison.counts
    assert comparison.relative == 0


def test_moments_begin_at_zero():
    before, truth = state([0.0, 0.0]), state([1.0, 0.0], moment=[3.0, 4.0])
    comparison = updates.compare(before, {**truth, "optimiser/exp_avg/w": torch.tensor([3.0, 0.0])}, truth)
    assert comparison.kinds["exp_avg"].relative == pytest.approx(4 / 5)


def test_small_tensors_count_as_if_of_usual_size():
    """A bias that hardly moves may differ by all of its movement; a matrix may not."""
    before = {"model/matrix": torch.zeros(100), "model/bias": torch.zeros(1)}
    truth = {"model/matrix": torch.ones(100), "model/bias": torch.tensor([1e-6])}
    bias = updates.compare(before, {**truth, "model/bias": torch.tensor([2e-6])}, truth).kinds["model"]
    assert bias.worst < 1e-5
    matrix = updates.compare(before, {**truth, "model/matrix": 2 * torch.ones(100)}, truth).kinds["model"]
    assert matrix.worst == pytest.approx(1.0, rel=1e-2)
    assert matrix.tensor == "model/matrix"


def test_weights_count_by_their_gradients():
    """Of two weights that move alike the second has no gradient: what it does changes nothing."""
    name = "optimiser/exp_avg_sq/w"
    before = {**state([0.0, 0.0]), name: torch.zeros(2)}
    truth = {**state([1.0, 1.0]), name: torch.tensor([4.0, 0.0])}
    idle = updates.compare(before, {**truth, "model/w": torch.tensor([1.0, -1.0])}, truth).kinds["model"]
    assert (idle.relative, idle.cosine, idle.worst) == (0.0, 1.0, 0.0)
    assert (idle.plain, idle.jump) == pytest.approx((math.sqrt(2), 2.0))
    other = updates.compare(before, {**truth, "model/w": torch.tensor([0.5, 1.0])}, truth).kinds["model"]
    assert other.relative == pytest.approx(0.5)
    assert other.plain == pytest.approx(0.5 / math.sqrt(2))
    truth[name] = torch.tensor([9.0, 1.0])  # roots 3 and 1, so that the first counts three times as much
    mixed = updates.compare(before, {**truth, "model/w": torch.tensor([1.0, 0.0])}, truth).kinds["model"]
    assert mixed.relative == pytest.approx(math.sqrt(1 / 4))


def test_a_single_number_that_jumps_is_seen():
    """A trigger in weights that honest data never use: their share is small, their jump is not."""
    before, truth = state([0.0] * 100), state([0.01] * 100)
    after = {**truth, "model/w": torch.tensor([0.01] * 99 + [0.05])}
    assert updates.compare(before, after, truth).kinds["model"].jump == pytest.approx(4.0)


def test_other_tensors_or_shapes_or_no_numbers_are_unlike():
    before, truth = state([0.0, 0.0]), state([1.0, 0.0])
    assert updates.compare(before, {**truth, "more": torch.zeros(1)}, truth).relative == UNLIKE
    assert not updates.compare(before, {**truth, "model/w": torch.zeros(3)}, truth).counts
    spoilt = updates.compare(before, state([math.nan, 0.0]), truth)
    assert spoilt.relative == UNLIKE
    assert not spoilt.equal
    spoilt.model_dump_json()


def test_kinds():
    names = ["model/a", "ema/a", "optimiser/exp_avg/a.b", "optimiser/step/a", "scale/scale", "optimiser/x"]
    assert [updates.kind_of(name) for name in names] == ["model", "ema", "exp_avg", None, None, None]


def random_update(seed: int, size: int = 4000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.0, math.pi / 2, 3.0])
def test_a_sketch_keeps_angles(angle):
    a, b = random_update(1), random_update(2)
    a, b = a / a.norm(), b - a * (a @ b) / (a @ a)
    turned = math.cos(angle) * a + math.sin(angle) * b / b.norm()
    zero = {"model/x": torch.zeros(1500), "model/y": torch.zeros(2500)}

    def sketched(update):
        return updates.sketch(zero, {"model/x": update[:1500], "model/y": update[1500:]})

    likeness = admission.cosine(sketched(a), sketched(turned))
    assert abs(likeness - math.cos(angle)) < 4 / math.sqrt(updates.SKETCH)


def test_a_sketch_is_linear_and_everybodys():
    zero = {"model/x": torch.zeros(64)}
    a, b = random_update(1, 64), random_update(2, 64)
    sums = [
        x + y
        for x, y in zip(
            updates.sketch(zero, {"model/x": a}), updates.sketch(zero, {"model/x": b}), strict=True
        )
    ]
    assert sums == pytest.approx(updates.sketch(zero, {"model/x": a.double() + b.double()}), abs=1e-9)


def test_norm_change_and_finiteness_by_hand():
    before = {"model/w": torch.zeros(4), "ema/w": torch.zeros(4)}
    after = {"model/w": torch.tensor([3.0, 4.0, 0.0, 0.0]), "ema/w": torch.ones(4)}
    assert updates.norm(before, after) == 5.0
    assert updates.changed(before, after) == 0.5
    assert updates.is_finite(after)
    assert not updates.is_finite({"ema/w": torch.tensor([math.inf])})
