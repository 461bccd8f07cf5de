import pytest
import torch
from torch import nn

from atoll.sampling import routing
from atoll.sampling.routing import Band

FIRST = torch.tensor([0])


class Known(nn.Module):
    """Certain below t = 0.3, indifferent above 0.7, in between somewhere in between."""

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: None) -> torch.Tensor:
        logit = 30 * ((0.7 - t) / 0.4).clamp(0, 1)
        return torch.stack([logit, -logit], dim=1)


def test_the_band_is_where_the_router_decides():
    band = routing.measure_band(Known(), torch.zeros(8, 2), torch.randn(8, 2), None)
    # 60 logits apart at 0.3; 1e-5 is reached within one point of the grid of 50
    assert 0.3 <= band.low <= 0.66
    assert band.high == pytest.approx(0.7, abs=0.021)


def test_a_router_that_never_settles_is_always_asked():
    class Restless(nn.Module):
        def forward(self, x_t, t, condition):
            return x_t

    band = routing.measure_band(Restless(), torch.randn(8, 2), torch.randn(8, 2), None)
    assert band == Band(0.0, 1.0)


def test_outside_the_band_the_answer_is_kept():
    asked: list[float] = []

    def posterior(x_t: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        asked.append(round(float(t[0]), 2))
        sure = (1.5 - t).clamp(max=1.0)
        return torch.stack([sure, 1 - sure], dim=1)

    ask = routing.in_band(posterior, Band(0.25, 0.75))
    answers = [
        float(ask(torch.zeros(1, 1), torch.tensor([t]), FIRST, t)[0, 0])
        for t in (1.0, 0.8, 0.6, 0.4, 0.2, 0.1)
    ]
    assert asked == [1.0, 0.6, 0.4]
    assert answers == pytest.approx([0.5, 0.5, 0.9, 1.0, 1.0, 1.0])


def test_a_sample_that_is_still_undecided_below_the_band_is_asked_about():
    asked: list[float] = []

    def posterior(x_t: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        asked.append(round(float(t[0]), 2))
        return torch.tensor([[0.6, 0.4]])

    ask = routing.in_band(posterior, Band(0.5, 0.75))
    for t in (1.0, 0.6, 0.4, 0.2):
        ask(torch.zeros(1, 1), torch.tensor([t]), FIRST, t)
    assert asked == [1.0, 0.6, 0.4, 0.2]


def test_below_the_band_only_the_undecided_are_asked_about():
    asked: list[list[int]] = []

    def posterior(x_t: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        asked.append(rows.tolist())
        assert len(x_t) == len(t) == len(rows)
        sure = (
            torch.where(rows == 1, 0.6, 1.0) + x_t[:, 0]
        )  # the second one makes up its mind when x_t says so
        return torch.stack([sure, 1 - sure], dim=1)

    ask, rows = routing.in_band(posterior, Band(0.5, 1.0)), torch.arange(3)
    ask(torch.zeros(3, 1), torch.ones(3), rows, 1.0)
    ask(torch.zeros(3, 1), torch.full((3,), 0.4), rows, 0.4)
    late = torch.tensor([[9.0], [0.4], [9.0]])
    answers = ask(late, torch.full((3,), 0.2), rows, 0.2)
    assert answers[:, 0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    ask(late, torch.full((3,), 0.1), rows, 0.1)
    assert asked == [[0, 1, 2], [1], [1]]


def test_a_router_that_was_sure_too_early_is_not_believed_then():
    class Hasty(nn.Module):
        """Sure of the first expert between 0.9 and 0.6, and of the second below 0.3."""

        def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: None) -> torch.Tensor:
            logit = 30.0 * ((t > 0.6) & (t < 0.9)) - 30.0 * (t < 0.3)
            return torch.stack([logit, -logit], dim=1)

    band = routing.measure_band(Hasty(), torch.zeros(4, 2), torch.randn(4, 2), None)
    assert band.low == pytest.approx(0.28, abs=0.021)
    assert band.high == pytest.approx(0.9, abs=0.021)


def test_certainty_by_hand():
    assert routing.certainty(torch.tensor([[0.9, 0.1], [0.5, 0.5]])) == pytest.approx(0.7)
