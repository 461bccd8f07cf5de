"""Every objective, exactly predicted, is the exact velocity; what skips a step of the conversion is not."""

import pytest
import torch

from atoll.config import NetworkConfig
from atoll.flow import objectives, path
from atoll.models.checkpoint import Objective
from atoll.models.dit import DiT
from atoll.models.expert import Expert, as_expert, velocity
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from tests.analytic import ExactPredictor, MixtureRouter, mixture_of, sliced_wasserstein

PAIRS = [(name, prediction) for name in path.PATHS for prediction in objectives.PREDICTIONS]
TIMES = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 0.9, 0.95]


def objective(name: str, prediction: str) -> Objective:
    return Objective.model_validate({"path": name, "prediction": prediction})


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


@pytest.mark.parametrize("dims", [8, 64])
@pytest.mark.parametrize(("name", "prediction"), PAIRS)
def test_an_exact_predictor_gives_the_exact_velocity(name, prediction, dims):
    data = mixture_of(4, 3, dims)
    low, high = objectives.reach(prediction, path.PATHS[name])
    network = ExactPredictor(data, name, prediction)
    for t in TIMES:
        if not low <= t <= high:
            continue
        x_0, _ = data.draw(64)
        noise = torch.randn(64, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        times = torch.full((64,), t, dtype=torch.float64)
        x_t = path.point(x_0, noise, times)
        exact = data.velocity(x_t, times)
        found = velocity(network, objective(name, prediction), x_t, times)
        assert relative(found, exact) <= 1e-6, t
        found = velocity(network, objective(name, prediction), x_t.float(), times.float())
        assert found.dtype == torch.float32
        assert relative(found, exact) <= 1e-3, t


@pytest.mark.parametrize("name", ["cosine", "linear-beta", "scaled-linear"])
@pytest.mark.parametrize("t", [0.3, 0.5, 0.85])
def test_leaving_out_a_step_is_wrong_by_tens_of_per_cent(name, t):
    """The same exact network; only the conversion differs. The published one takes neither step."""
    data, along = mixture_of(4, 3, 8), path.PATHS[name]
    network = ExactPredictor(data, name, "noise")
    x_0, _ = data.draw(256)
    noise = torch.randn(256, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    times = torch.full((256,), t, dtype=torch.float64)
    x_t = path.point(x_0, noise, times)
    exact = data.velocity(x_t, times)
    convert = objectives.to_velocity
    same_time = network(x_t, times * along.last)
    wrong = {
        "published": objectives.published_velocity(along, same_time, x_t, times),
        "published, own derivatives": objectives.published_velocity(along, same_time, x_t, times, True),
        "no rescaling": convert("noise", along, network(x_t, along.match(times)), x_t, times),
        "no matching": convert(
            "noise", along, network(along.scale(times)[:, None] * x_t, times * along.last), x_t, times
        ),
    }
    assert relative(velocity(network, objective(name, "noise"), x_t, times), exact) < 1e-9
    errors = {how: relative(v, exact) for how, v in wrong.items()}
    if name != "linear-beta":  # the others' times are near those of the linear path for some t
        errors.pop("no matching")
    assert min(errors.values()) > 0.1, errors


@pytest.mark.parametrize(("name", "prediction"), PAIRS)
@pytest.mark.parametrize("t", [0.0, 1e-6, 0.999, 1.0])
def test_the_ends_are_those_of_the_nearest_time_in_reach(name, prediction, t):
    data = mixture_of(3, 2, 8)
    network, how = ExactPredictor(data, name, prediction), objective(name, prediction)
    low, high = objectives.reach(prediction, path.PATHS[name])
    x_t = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    found = velocity(network, how, x_t, torch.full((16,), t))
    assert found.isfinite().all()
    nearest = velocity(network, how, x_t, torch.full((16,), min(max(t, low), high)))
    assert torch.equal(found, nearest)
    if t >= 0.999:  # near pure noise the velocity hardly changes any more
        exact = data.velocity(x_t.double(), torch.ones(16, dtype=torch.float64))
        assert relative(found, exact) < 0.1


@pytest.mark.parametrize(("name", "prediction"), PAIRS)
@pytest.mark.parametrize("t", [0.03, 0.5, 0.98, 1.0])
def test_bfloat16_costs_no_more_than_the_conversion_must(name, prediction, t):
    """A network that answers in bfloat16 errs by 2⁻⁸ of its answer, times the gain of its conversion."""
    data = mixture_of(3, 2, 8)
    exact = ExactPredictor(data, name, prediction)

    class Rounded(ExactPredictor):
        def forward(self, x, time, condition=None):
            return super().forward(x.float(), time).bfloat16()

    how = objective(name, prediction)
    low, high = objectives.reach(prediction, path.PATHS[name])
    reached = min(max(t, low), high)
    gain = {"velocity": 1.0, "v": 2**0.5, "data": 1 / reached}.get(prediction) or 1 / (1 - reached)
    x_t, times = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.full((64,), t)
    rounded = velocity(Rounded(data, name, prediction), how, x_t, times)
    size = exact(x_t, path.PATHS[name].match(times)).square().mean().sqrt()
    error = (rounded - velocity(exact, how, x_t, times)).square().mean().sqrt()
    assert error <= 2**-8 * gain * size * 1.5


def test_a_discrete_network_is_fed_the_index_of_its_schedule():
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def forward(self, x, time, condition=None):
            seen.append(1000 * time)
            return x

    x_t, t = torch.zeros(3, 2), torch.tensor([0.0, 0.5, 1.0])
    velocity(Spy(), objective("linear-beta", "v"), x_t, t)
    torch.testing.assert_close(seen[0], torch.tensor([0.0, 258.1, 999.0]), atol=0.1, rtol=0)
    velocity(Spy(), Objective(rounded=True), x_t, torch.tensor([0.0, 0.3, 1.0]))
    torch.testing.assert_close(seen[1], torch.tensor([0.0, 300.0, 999.0]))


def test_a_velocity_network_stays_as_it_is():
    network = DiT(NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2)), (1, 4, 4))
    assert as_expert(network, Objective()) is network
    assert isinstance(as_expert(network, objective("cosine", "noise")), Expert)


MIXES = {
    "as in HDDM": [("linear", "velocity"), ("cosine", "noise"), ("linear", "velocity"), ("cosine", "noise")],
    "one of each": [
        ("linear", "data"),
        ("linear-beta", "noise"),
        ("scaled-linear", "v"),
        ("cosine", "velocity"),
    ],
}


@pytest.mark.each(2)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("strategy", ["full", "ancestral"])
def test_mixed_ensembles_of_exact_experts_sample_the_mixture(mix, strategy):
    data, num = mixture_of(4, 3, 8), 2000
    experts = [
        as_expert(ExactPredictor(data, name, prediction, k), objective(name, prediction))
        for k, (name, prediction) in enumerate(MIXES[mix])
    ]
    ensemble = Sampler(Ensemble(experts, data.priors.float(), (8,), MixtureRouter(data)))
    samples = ensemble.sample(num, strategy=strategy, steps=60, batch=num).double()
    real, _ = data.draw(num, seed=1)
    nearest = data.cluster[torch.cdist(samples, data.means).argmin(1)]
    shares = torch.bincount(nearest, minlength=4) / num
    sampling_error = 4 * (0.25 * 0.75 / num) ** 0.5
    assert ((shares - 0.25).abs() <= sampling_error).all(), shares
    other, _ = data.draw(num, seed=2)
    floor = sliced_wasserstein(other, real)  # what two draws of the same data differ by
    assert sliced_wasserstein(samples, real) <= floor + 0.02, floor


class Published(ExactPredictor):
    """The same exact network, turned into a velocity as HDDM publishes it."""

    derivatives = False

    def forward(self, x, time, condition=None):
        predicted = super().forward(x, time * self.path.last)
        return objectives.published_velocity(self.path, predicted, x, time, self.derivatives)


@pytest.mark.thorough
def test_the_published_conversion_does_not_sample_the_mixture():
    """The other side of the test above.

    Without the schedule's derivatives samples keep noise: nearly twice the variance around their means.
    With them each expert walks its own path, which is right alone and wrong in company: shares drift.
    """
    data, num = mixture_of(4, 3, 8), 2000
    router, priors = MixtureRouter(data), data.priors.float()
    plain = Sampler(Ensemble([Published(data, "cosine", "noise", k) for k in range(4)], priors, (8,), router))
    samples = plain.sample(num, strategy="ancestral", steps=60, batch=num).double()
    variance = torch.cdist(samples, data.means).min(1).values.square().mean() / 8
    assert variance > 1.7 * data.width**2
    for k in range(4):
        plain.ensemble.experts[k].derivatives = True
    samples = plain.sample(num, strategy="full", steps=60, batch=num).double()
    shares = torch.bincount(data.cluster[torch.cdist(samples, data.means).argmin(1)], minlength=4) / num
    assert (shares - 0.25).abs().max() > 0.05
