from dataclasses import replace

import torch

from atoll.sampling import parts
from atoll.sampling.abreast import Crew
from atoll.sampling.routing import Band
from atoll.sampling.sampler import Sampler
from atoll.sampling.weighing import weigher
from tests.analytic import grouped
from tests.sampling.known import exact


def weigh_of(sampler, strategy, **settings):
    asked = sampler.request(strategy=strategy, **settings)
    part = next(parts.parts(sampler.ensemble, asked, strategy))
    return weigher(sampler.ensemble, asked, strategy, part, Crew(1, asked.settings.batch)), part


def test_a_fixed_expert_is_weighed_once():
    weigh, part = weigh_of(exact(grouped(3, [4, 4, 4], dims=4, spread=0.2)), "ancestral", num=9)
    first = weigh(torch.zeros(1, 4), torch.ones(1), 1.0)
    assert first is weigh(torch.zeros(1, 4), torch.ones(1), 0.5)
    assert first.weights[:, part.expert].eq(1).all()
    assert [(group.expert, group.rows) for (group,) in first.questions] == [(part.expert, slice(None))]


def test_as_long_as_the_router_says_the_same_nothing_is_weighed_again():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.01)
    sampler = Sampler(replace(exact(data).ensemble, band=Band(0.4, 0.6)))
    weigh, _ = weigh_of(sampler, "top-1", num=9)
    x_t = data.points[:9].float()

    def at(t: float):
        return weigh(x_t, torch.full((9,), t), t)

    noise, above, inside, below = at(1.0), at(0.7), at(0.5), at(0.05)
    assert above is noise
    assert inside is not above
    assert at(0.04) is at(0.03) is below


def test_draws_are_made_anew_at_every_step():
    weigh, _ = weigh_of(exact(grouped(3, [4, 4, 4], dims=4, spread=0.2)), "sample-1", num=30)
    x_t = torch.zeros(30, 4)
    first, second = (weigh(x_t, torch.ones(30), 1.0).weights for _ in range(2))
    assert not torch.equal(first, second)
    assert first.sum(1).eq(1).all()
