"""How much of the way each expert went: by hand, for every solver, guided, alone and among others' rows."""

import itertools
from dataclasses import replace

import pytest
import torch

from atoll.credit.shares import trajectory_shares
from atoll.flow import draws, solver
from atoll.sampling import ways
from atoll.sampling.rows import Rows, started
from tests.analytic import grouped
from tests.sampling.known import exact

DATA = grouped(3, [6, 10, 8], dims=4, spread=0.4)
ASKED = {"strategy": "full", "steps": 6, "seed": 3}


def test_the_parts_of_eulers_way_by_hand():
    """A_i = ⟨Σ w_i v_i Δt, Δx⟩ / ‖Δx‖², with weights and velocities asked again along the way."""
    sampler = exact(DATA)
    noise = draws.sample_noise(3, range(5), (4,))
    x_t, moved = noise, torch.zeros(3, 5, 4)
    for t, end in itertools.pairwise(solver.times(6)):
        times = torch.full((5,), t)
        weights = sampler.posterior(x_t, times)
        parts = torch.stack([weights[:, k, None] * sampler.ensemble.experts[k](x_t, times) for k in range(3)])
        moved, x_t = moved + (end - t) * parts, x_t + (end - t) * parts.sum(0)
    made = sampler.trace(5, provenance=True, band=False, **ASKED)
    torch.testing.assert_close(made.x_0, x_t)
    torch.testing.assert_close(made.moved, trajectory_shares(moved, x_t - noise))
    assert float((made.moved - made.shares).abs().max()) > 0.01, "weights are something else"


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++"])
@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_whatever_the_solver_the_parts_sum_to_the_way_and_the_samples_are_the_same(name, guidance):
    """Guided away from a weak network too, which is nobody's part and everybody's."""
    sampler = exact(DATA)
    sampler = replace(sampler, ensemble=replace(sampler.ensemble, weak=sampler.ensemble.experts[0]))
    asked = {**ASKED, "solver": name, "guidance": guidance}
    plain, made = sampler.trace(5, **asked), sampler.trace(5, provenance=True, **asked)
    assert plain.moved is None and torch.equal(plain.x_0, made.x_0)
    torch.testing.assert_close(made.moved.sum(1), torch.ones(5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("strategy", ["full", "top-2", "ancestral"])
@pytest.mark.parametrize("name", ["euler", "heun", "dpm++"])
def test_rows_of_many_requests_go_the_same_way(name, strategy):
    sampler = exact(DATA)
    asked = {**ASKED, "solver": name, "strategy": strategy, "provenance": True}
    crowd: Rows[str] = Rows(sampler.ensemble)
    other = sampler.request(num=2, strategy="full", steps=9, seed=1)
    crowd.join(started(sampler.ensemble, "other", other, "full", range(2)))
    crowd.step()
    crowd.join(started(sampler.ensemble, "mine", sampler.request(num=4, **asked), strategy, range(4)))
    while not all(row.done for row in crowd.rows if row.owner == "mine"):
        crowd.step([number for number, row in enumerate(crowd.rows) if not row.done])
    own = [number for number, row in enumerate(crowd.rows) if row.owner == "mine"]
    torch.testing.assert_close(crowd.moved(own), sampler.trace(4, **asked).moved, atol=1e-5, rtol=1e-4)
    crowd.leave(own)
    assert not crowd._ways, "nothing is kept of who has left"


def test_who_is_asked_alone_goes_all_of_the_way():
    made = exact(DATA).trace(6, strategy="ancestral", steps=3, provenance=True)
    assert torch.equal(made.moved, made.weights[0])


def test_a_state_is_a_sample_and_what_was_moved_of_it():
    noise = torch.randn(2, 1, 3, 3)
    state = ways.begun(noise, 4)
    assert torch.equal(ways.point(state), noise) and not ways.moved(state).any()
    assert not ways.shares(ways.moved(state)).any(), "nobody has moved yet"


@pytest.mark.parametrize("guidance", [1.0, 1.5, torch.tensor([1.0, 3.0, 1.0, 1.5])])
def test_what_experts_add_is_the_velocity(guidance):
    """Also where it is moved away from a weak network, at all rows or at some."""
    ensemble = exact(DATA).ensemble
    ensemble = replace(ensemble, weak=ensemble.experts[0])
    x_t, t = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.full((4,), 0.7)
    weights = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.4, 0.6], [0.1, 0.9, 0.0]])
    mixed = ensemble.mixed(weights, x_t, t, None, guidance, apart=True)
    torch.testing.assert_close(mixed.parts.sum(1), mixed.velocity)
    assert torch.equal(mixed.velocity, ensemble.mixed(weights, x_t, t, None, guidance).velocity)
    assert not mixed.parts[weights == 0].any(), "who has no weight adds nothing"
