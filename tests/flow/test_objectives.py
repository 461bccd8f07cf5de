import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.flow import objectives, path


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


PAIRS = [(name, prediction) for name in path.PATHS for prediction in objectives.PREDICTIONS]


def state(name: str, t: float, batch: int = 4) -> tuple[torch.Tensor, ...]:
    """(alpha, sigma, x_0, noise, x_t, t) of one time of the linear path, in float64."""
    g = torch.Generator().manual_seed(0)
    x_0, noise = torch.randn(2, batch, 2, 3, generator=g, dtype=torch.float64)
    times = torch.full((batch,), t, dtype=torch.float64)
    along = path.PATHS[name]
    alpha, sigma = along.coefficients(along.match(times))
    return alpha, sigma, x_0, noise, path.point(x_0, noise, times), times


@pytest.mark.parametrize(("name", "prediction"), PAIRS)
@given(st.floats(0.03, 0.93))
def test_every_target_becomes_the_velocity(name, prediction, t):
    alpha, sigma, x_0, noise, x_t, times = state(name, t)
    y = objectives.target(prediction, alpha, sigma, x_0, noise)
    v = objectives.to_velocity(prediction, path.PATHS[name], y, x_t, times)
    torch.testing.assert_close(v, noise - x_0, rtol=1e-10, atol=1e-10)


def test_noise_on_the_linear_path_as_published():
    """v = (noise - x_t) / (1 - t): errors grow by 1 / (1 - t)."""
    _, _, _, noise, x_t, t = state("linear", 0.8)
    v = objectives.to_velocity("noise", path.PATHS["linear"], noise + 0.1, x_t, t)
    torch.testing.assert_close(v, (noise + 0.1 - x_t) / 0.2)
    torch.testing.assert_close(v, path.velocity(state("linear", 0.8)[2], noise) + 0.5)


@pytest.mark.parametrize(("name", "prediction"), PAIRS)
def test_the_implicit_weight_is_that_of_an_error_in_x_0(name, prediction):
    """A wrong x_0 and the noise that the state then leaves, put into the natural loss."""
    alpha, sigma, x_0, noise, _, _ = state(name, 0.3)
    wrong = x_0 + 0.7
    left = noise - path.expand(alpha / sigma, x_0) * 0.7
    y = objectives.target(prediction, alpha, sigma, wrong, left)
    loss = objectives.loss(prediction, "uniform", alpha, sigma, y, x_0, noise)
    torch.testing.assert_close(loss, objectives.implicit_weight(prediction, alpha, sigma) * 0.7**2)


def test_implicit_weights_by_hand():
    """HDDM's proposition: on the linear path 1 / σ² for velocity, α² / σ² for noise."""
    alpha, sigma = torch.tensor([0.8, 0.2]), torch.tensor([0.2, 0.8])
    weights = {name: objectives.implicit_weight(name, alpha, sigma) for name in objectives.PREDICTIONS}
    torch.testing.assert_close(weights["velocity"], torch.tensor([25.0, 1.5625]))
    torch.testing.assert_close(weights["noise"], torch.tensor([16.0, 0.0625]))
    torch.testing.assert_close(weights["data"], torch.ones(2))
    alpha, sigma = torch.tensor([0.6]), torch.tensor([0.8])
    torch.testing.assert_close(objectives.implicit_weight("v", alpha, sigma), torch.tensor([1.5625]))


@pytest.mark.parametrize("weighting", objectives.WEIGHTINGS)
@pytest.mark.parametrize("prediction", objectives.PREDICTIONS)
def test_a_weighting_makes_predictions_comparable(weighting, prediction):
    """Under the same weighting the same error of x_0 costs the same, whatever is predicted."""
    alpha, sigma = path.PATHS["cosine"].coefficients(torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64))
    total = objectives.weight(weighting, prediction, alpha, sigma)
    total = total * objectives.implicit_weight(prediction, alpha, sigma)
    snr = (alpha / sigma).square()
    expected = {
        "uniform": objectives.implicit_weight(prediction, alpha, sigma),
        "min-snr": snr.clamp(max=5),
        "noise": snr,
        "velocity": ((alpha + sigma) / sigma).square(),
        "data": torch.ones_like(snr),
    }[weighting]
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("weighting", objectives.WEIGHTINGS)
@pytest.mark.parametrize(("name", "prediction"), PAIRS)
def test_losses_are_finite_at_both_ends(name, prediction, weighting):
    along = path.PATHS[name]
    alpha, sigma = along.coefficients(torch.tensor([0.0, along.last]))
    x_0, noise = torch.randn(2, 2, 5)
    loss = objectives.loss(prediction, weighting, alpha, sigma, torch.zeros(2, 5), x_0, noise)
    assert loss.isfinite().all()
    assert (objectives.weight(weighting, prediction, alpha, sigma) <= objectives.WEIGHT_LIMIT).all()


def test_each_prediction_is_read_off_only_where_it_tells_the_velocity():
    linear, sd = path.PATHS["linear"], path.PATHS["scaled-linear"]
    assert objectives.reach("velocity", linear) == (0, 1)
    assert objectives.reach("v", linear) == (0, 1)
    assert objectives.reach("noise", linear) == (0, 0.95)
    assert objectives.reach("data", linear) == (0.001, 1)
    assert objectives.reach("noise", sd) == sd.reach


def test_the_published_conversion_is_right_on_the_linear_path_only():
    _, _, x_0, noise, x_t, t = state("linear", 0.6)
    v = objectives.published_velocity(path.PATHS["linear"], noise, x_t, t)
    torch.testing.assert_close(v, noise - x_0)
    v = objectives.published_velocity(path.PATHS["linear"], noise, x_t, t, derivatives=True)
    torch.testing.assert_close(v, noise - x_0, rtol=1e-6, atol=1e-6)
