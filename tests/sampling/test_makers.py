"""Whose sample it is, of an ensemble whose densities are known."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll.sampling import makers
from atoll.sampling.ensemble import Ensemble
from tests.analytic import ExactPredictor, GaussianMixture, MixtureRouter, mixture_of

DATA = mixture_of(4, 2, dims=6, width=0.2)


def ensemble_of(data: GaussianMixture, *, router: bool = True) -> Ensemble:
    experts = [ExactPredictor(data, "linear", "velocity", k) for k in range(data.clusters)]
    return Ensemble(experts, data.priors.float(), (6,), MixtureRouter(data) if router else None)


def test_the_maker_is_named_without_being_told():
    x_0, cluster = DATA.draw(200, seed=1)
    made = makers.makers(ensemble_of(DATA), x_0.float(), levels=24, batch=200)
    assert (made.posterior.argmax(1) == cluster).double().mean() >= 0.95
    assert torch.allclose(made.posterior.sum(1), torch.ones(200).double())
    assert float(made.bits.min()) == 0.0
    nearest_to_data = made.weights[int(made.t.argmin())]
    assert (nearest_to_data.argmax(1) == cluster).double().mean() >= 0.95


def test_a_sample_is_judged_by_itself():
    """Whatever is asked at once, and whoever else is asked about."""
    x_0 = DATA.draw(10, seed=2)[0].float()
    ensemble = ensemble_of(DATA)
    one, other = (makers.makers(ensemble, x_0, levels=8, batch=size) for size in (3, 10))
    assert torch.allclose(one.posterior, other.posterior)
    assert torch.allclose(one.weights, other.weights)


def test_facts_are_of_one_sample():
    x_0, cluster = DATA.draw(5, seed=3)
    made = makers.makers(ensemble_of(DATA), x_0.float(), levels=16, batch=5)
    facts = made.facts(2)
    assert facts["expert"] == int(cluster[2])
    assert sum(facts["posterior"]) == pytest.approx(1, abs=1e-5)
    assert len(facts["weights"]) == len(facts["times"]) == 16
    assert all(sum(at) == pytest.approx(1, abs=1e-4) for at in facts["weights"])
    assert facts["times"] == sorted(facts["times"])


def test_without_a_router_the_weights_are_the_priors():
    made = makers.makers(ensemble_of(DATA, router=False), torch.zeros(1, 6), levels=4, batch=1)
    assert torch.allclose(made.weights, DATA.priors.float().expand(4, 1, 4))


def test_progress_is_told_to_the_end():
    told: list[tuple[int, int]] = []
    makers.makers(
        ensemble_of(DATA), torch.zeros(3, 6), levels=4, batch=2, progress=lambda *count: told.append(count)
    )
    # Twelve rows, two at a time, each asked of four experts.
    assert told == [(answers, 48) for answers in range(2, 49, 2)]


def test_each_expert_is_asked_once_about_many_levels():
    """Experts that must be loaded are loaded once for a batch of levels, not for each of them."""
    look = makers.looking(ensemble_of(DATA), torch.zeros(1, 6), levels=16, batch=128)
    assert list(look) == [(16, 64), (32, 64), (48, 64), (64, 64)]


def test_it_says_what_it_does_not_show():
    assert "not whose work is in it" in makers.SENTENCE


class Untaught(torch.nn.Module):
    """An expert that is exact where it was trained, and says nonsense of less noise than it ever saw."""

    def __init__(self, exact: torch.nn.Module, size: float) -> None:
        super().__init__()
        self.exact, self.size = exact, size

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: object = None) -> torch.Tensor:
        nonsense = self.size * (t.logit() < -3.0)
        return self.exact(x_t, t, condition) + nonsense[:, None]


def test_what_experts_say_of_less_noise_than_they_saw_does_not_count():
    x_0, cluster = DATA.draw(200, seed=1)
    ensemble = ensemble_of(DATA)
    sizes = (0.0, 200.0, 0.0, 100.0)  # of no expert's samples: of what it happens to be bad at
    parts = [Untaught(ensemble.experts[k], size) for k, size in enumerate(sizes)]
    made = makers.makers(
        Ensemble(parts, DATA.priors.float(), (6,), MixtureRouter(DATA)), x_0.float(), levels=24, batch=200
    )
    assert (made.posterior.argmax(1) == cluster).double().mean() >= 0.95


def test_who_is_gone_made_nothing_and_is_not_asked():
    """As if there had only been the others: their posterior and the router's weights are renormalised."""
    x_0 = DATA.draw(6, seed=5)[0].float()
    whole = ensemble_of(DATA)
    everybody = makers.makers(whole, x_0, levels=8, batch=6)
    experts: list[Any] = [None if k == 1 else whole.experts[k] for k in range(4)]
    left = makers.makers(replace(whole, experts=experts, absent=frozenset({1})), x_0, levels=8, batch=6)
    others = [0, 2, 3]
    for few, many in ((left.posterior, everybody.posterior), (left.weights, everybody.weights)):
        expected = many[..., others] / many[..., others].sum(-1, keepdim=True)
        assert torch.allclose(few[..., others], expected, atol=1e-5)
        assert float(few[..., 1].abs().max()) == 0.0
    facts = left.facts(0)
    assert [number is None for number in facts["bits_per_value_worse"]] == [False, True, False, False]
    json.dumps(facts, allow_nan=False)


def test_shares_for_display_are_of_what_is_said_beyond_a_base():
    """Against their definition at every level, asked one by one; an expert that is the base has none."""
    x_0 = DATA.draw(3, seed=6)[0].float()
    whole = ensemble_of(DATA)
    made = makers.makers(whole, x_0, levels=4, batch=5, base=whole.experts[2])
    assert made.display is not None
    assert float(made.display[:, 2].abs().max()) == 0.0
    assert torch.allclose(made.display.sum(1), torch.ones(3))
    expected = torch.zeros(3, 4)
    for row in range(3):
        for level, t in enumerate(made.t):
            noise = makers._noise(0, level, row, (6,))
            x_t, time = ((1 - t) * x_0[row] + t * noise)[None], t[None]
            apart = [whole.experts[k](x_t, time, None) - whole.experts[2](x_t, time, None) for k in range(4)]
            parts = [made.weights[level, row, k] * apart[k] for k in range(4)]
            together = sum(parts, torch.zeros(1, 6))
            expected[row] += torch.stack([(part * together).sum() for part in parts])
    assert torch.allclose(made.display, expected / expected.sum(1, keepdim=True), atol=1e-4)
    assert made.facts(0)["display"] == pytest.approx(made.display[0].tolist(), abs=1e-5)
