import itertools

import pytest
import torch
from torch import nn

from atoll.errors import ConfigError
from atoll.flow import mixture
from atoll.sampling import parts
from tests.analytic import grouped
from tests.sampling.known import exact, told


def test_auto_asks_the_router_how_sure_it_is_at_noise():
    plain = exact(grouped(2, [1, 1], dims=2, spread=0.1))
    assert plain.trace(2, steps=1).strategy == "ancestral"
    certain = told().trace(4, steps=1)
    assert (certain.strategy, certain.certainty) == ("top-1", 1.0)
    unsure = told(router=Indifferent())
    traced = unsure.trace(4, steps=1)
    assert (traced.strategy, traced.certainty) == ("ancestral", 0.5)
    assert told().trace(4, steps=1, strategy="full").strategy == "full"


class Indifferent(nn.Module):
    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x_t), 2)


def test_given_a_class_ancestors_follow_its_counts_and_not_the_router():
    """Class 0 lies in both clusters, 30 to 10, class 1 in the second alone."""
    by_class = mixture.given_class(torch.tensor([[30, 0], [10, 60]]), torch.tensor([0.3, 0.7]))
    ensemble = told(by_class=by_class, router=None)
    drawn = ensemble.trace(4000, label=[0, 1], strategy="ancestral", steps=1, batch=4000).expert
    assert float((drawn[::2] == 0).double().mean()) == pytest.approx(0.75, abs=0.04)  # four deviations
    assert (drawn[1::2] == 1).all()
    alone = ensemble.trace(50, label=[1], strategy="ancestral", steps=1, experts=(0,)).expert
    assert (alone == 0).all(), "where the class has no expert that serves, one that serves is taken"


def test_auto_counts_where_it_can():
    by_class = mixture.given_class(torch.tensor([[1, 1], [1, 1]]), torch.tensor([0.5, 0.5]))
    ensemble = told(by_class=by_class)
    traced = ensemble.trace(4, steps=1)
    assert (traced.strategy, traced.certainty) == ("ancestral", 0.5), "whatever the router believes"


def test_the_oracle_is_told_the_clusters():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    wanted = [2, 0, 1, 2]
    traced = exact(data).trace(4, strategy="oracle", cluster=wanted, steps=20)
    assert traced.expert.tolist() == wanted
    nearest = data.cluster[torch.cdist(traced.x_0.double(), data.points).argmin(1)]
    assert nearest.tolist() == wanted
    with pytest.raises(ConfigError, match="needs the cluster of every sample"):
        exact(data).sample(4, strategy="oracle", cluster=[1])
    with pytest.raises(ConfigError, match="numbered 0 to 2"):
        exact(data).sample(1, strategy="oracle", cluster=[3])


def indices(sampler, strategy, **settings):
    asked = sampler.request(strategy=strategy, **settings)
    return [(part.expert, list(part.indices)) for part in parts.parts(sampler.ensemble, asked, strategy)]


def test_every_sample_is_in_one_part_of_at_most_a_batch():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    made = indices(exact(data), "ancestral", num=23, batch=4)
    assert sorted(index for _, some in made for index in some) == list(range(23))
    assert max(len(some) for _, some in made) <= 4
    experts = [expert for expert, _ in made]
    assert experts == sorted(experts), "each expert is loaded once"
    routed = indices(exact(data), "full", num=23, batch=4)
    assert [len(some) for _, some in routed] == [12, 11], "a batch for each of three experts"


def test_parts_come_before_the_last_sample_is_known():
    """A request of any size starts at once: windows of samples, not all of them, are shared out."""
    data = grouped(2, [4, 4], dims=2, spread=0.2)
    sampler = exact(data)
    asked = sampler.request(10**12, strategy="ancestral", batch=50_000)
    some = list(itertools.islice(parts.parts(sampler.ensemble, asked, "ancestral"), 2))
    assert [part.expert for part in some] == [0, 1]
    assert sum(len(part.indices) for part in some) == 50_000
    routed = next(parts.parts(sampler.ensemble, asked, "full"))
    assert routed.indices == range(100_000)
