import pytest
import torch

from atoll.config import NetworkConfig
from atoll.flow import mixture, objectives
from atoll.models.checkpoint import Objective
from atoll.models.dit import DiT
from atoll.models.expert import Expert
from atoll.sampling.ensemble import Ensemble
from atoll.train.teaching import Lesson, Teachers
from tests.analytic import ExactExpert, ExactPredictor, ExactRouter, MixtureRouter, grouped, mixture_of
from tests.models.test_dit import awake

DATA = grouped(3, [4, 9, 2], dims=5, spread=0.3)


def exact() -> Ensemble:
    experts = [ExactExpert(DATA, k) for k in range(3)]
    return Ensemble(experts, DATA.priors.float(), (5,), ExactRouter(DATA))


def lesson(num: int = 12, **changes: object) -> Lesson:
    g = torch.Generator().manual_seed(0)
    found = {
        "x_t": torch.randn(num, 5, generator=g),
        "t": torch.rand(num, generator=g) * 0.9 + 0.05,
        "condition": None,
        "cluster": torch.arange(num) % 3,
        "uniform": torch.rand(num, generator=g),
    }
    return Lesson(**{**found, **changes})


def test_the_label_asks_each_expert_about_its_own_samples_only():
    ensemble, asked = exact(), lesson()
    found = Teachers(ensemble, "label").velocity(asked)
    for row in range(12):
        expected = DATA.expert(row % 3, asked.x_t[row : row + 1].double(), asked.t[row : row + 1].double())
        torch.testing.assert_close(found[row : row + 1], expected.float())
    assert [ensemble.experts[k].asked for k in range(3)] == [4, 4, 4]


def test_the_ensemble_teaches_the_velocity_of_all_data():
    asked = lesson()
    expected = DATA.velocity(asked.x_t.double(), asked.t.double()).float()
    torch.testing.assert_close(Teachers(exact(), "ensemble").velocity(asked), expected, rtol=1e-4, atol=1e-4)


def test_a_sampled_teacher_is_the_one_that_the_number_picks():
    ensemble, asked = exact(), lesson()
    posterior = DATA.posterior(asked.x_t.double(), asked.t.double())
    chosen = mixture.draw(posterior, asked.uniform)
    assert chosen.unique().numel() > 1
    found = Teachers(ensemble, "sampled").velocity(asked)
    expected = Teachers(ensemble, "label").velocity(lesson(cluster=chosen))
    assert torch.equal(found, expected)


def test_teachers_of_any_objective_teach_the_same_velocity():
    data = mixture_of(3, 2, dims=5)
    kinds = [("linear", "velocity"), ("cosine", "noise"), ("linear-beta", "v")]
    experts = [
        Expert(ExactPredictor(data, path, prediction, k), Objective(path=path, prediction=prediction))
        for k, (path, prediction) in enumerate(kinds)
    ]
    ensemble = Ensemble(experts, torch.ones(3) / 3, (5,), MixtureRouter(data))
    asked = lesson(t=torch.linspace(0.1, 0.9, 12), x_t=lesson().x_t.double())
    found = Teachers(ensemble, "ensemble").velocity(asked)
    torch.testing.assert_close(found, data.velocity(asked.x_t, asked.t.double()), rtol=1e-3, atol=1e-3)


def test_guidance_acts_in_its_interval_and_nowhere_else():
    network = awake(DiT(NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2)), (1, 4, 4), "class", 3))
    ensemble = Ensemble([network], torch.ones(1), (1, 4, 4), classes=3)
    t = torch.tensor([0.1, 0.7, 0.71, 0.95])
    told = torch.tensor([0, 1, 2, 0])
    x_t = torch.randn(4, 1, 4, 4)
    asked = Lesson(x_t, t, told, torch.zeros(4, dtype=torch.long), torch.zeros(4))
    found = Teachers(ensemble, "label", 3.0, (0.0, 0.7)).velocity(asked)
    plain, nothing = network(x_t, t, told), network(x_t, t, torch.full((4,), 3))
    expected = torch.cat([objectives.guide(plain[:2], nothing[:2], 3.0), plain[2:]])
    torch.testing.assert_close(found, expected.detach())
    assert (found[:2] - plain[:2]).abs().max() > 1e-3


def test_teaching_leaves_no_graph():
    network = awake(DiT(NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2)), (1, 4, 4)))
    ensemble = Ensemble([network], torch.ones(1), (1, 4, 4))
    zero = torch.zeros(2, dtype=torch.long)
    asked = Lesson(torch.randn(2, 1, 4, 4), torch.rand(2), None, zero, torch.zeros(2))
    assert not Teachers(ensemble).velocity(asked).requires_grad


@pytest.mark.parametrize("who", ["label", "sampled"])
def test_one_expert_per_sample_is_all_that_runs(who):
    ensemble = exact()
    Teachers(ensemble, who).velocity(lesson(30))
    asked: list[int] = [int(ensemble.experts[k].asked) for k in range(3)]
    assert sum(asked) == 30
