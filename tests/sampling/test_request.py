import pytest
import torch

from atoll.config import SampleConfig
from atoll.errors import ConfigError
from atoll.flow import draws
from atoll.sampling.request import settings
from tests.analytic import grouped
from tests.sampling.known import exact, told


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"strategy": "best"}, "unknown strategy 'best'"),
        ({"strategy": "top-0"}, "unknown strategy"),
        ({"steps": 0}, "'steps' = 0"),
        ({"guidance": 0.5}, "'guidance' = 0.5"),
        ({"num": -1}, "'num' = -1"),
        ({"speed": 3}, "unknown sampling setting speed"),
        ({"stpes": 3}, "unknown sampling setting stpes; did you mean 'steps'"),
        ({"strategy": "top1"}, "unknown strategy 'top1'; did you mean 'top-1'"),
        ({"solver": "eular"}, "'solver' = 'eular': did you mean 'euler'"),
    ],
)
def test_wrong_settings_are_named(wrong, said):
    with pytest.raises(ConfigError, match=said):
        settings(SampleConfig(), **wrong)


def test_a_class_for_a_run_without_classes_is_refused():
    with pytest.raises(ConfigError, match="not class-conditional"):
        exact(grouped(2, [1, 1], dims=2, spread=0.1)).sample(1, label=3)
    with pytest.raises(ConfigError, match="numbered 0 to 1"):
        told().sample(1, label=2)


def test_experts_that_do_not_exist_cannot_serve():
    with pytest.raises(ConfigError, match="numbered 0 to 1"):
        exact(grouped(2, [1, 1], dims=2, spread=0.1)).sample(1, experts=[2])


@pytest.mark.parametrize("strategy", ["top-3", "top-9"])
def test_more_experts_than_serve_cannot_be_asked(strategy):
    two = exact(grouped(2, [1, 1], dims=2, spread=0.1))
    with pytest.raises(ConfigError, match="more experts than serve, which are 2; use 'full'"):
        two.request(1, strategy=strategy)
    assert two.request(1, strategy="top-2").settings.strategy == "top-2"
    with pytest.raises(ConfigError, match="which are 1"):
        two.request(1, strategy="top-2", experts=[1])
    one = exact(grouped(1, [3], dims=2, spread=0.1))
    assert one.sample(1, strategy=strategy, steps=1).shape == (1, 2), "of one network there is no choice"


def test_what_is_decided_at_opening_is_not_asked_again():
    with pytest.raises(ConfigError, match="resident is decided when a model is opened"):
        told().sample(1, resident=1)
    with pytest.raises(ConfigError, match=r"atoll\.load\(…, precision=…\)"):
        told().sample(1, precision="bfloat16")


def test_a_request_tells_each_sample_in_turn():
    asked = told().request(5, label=[1, 0])
    assert [asked.asked(index) for index in range(3)] == [{"class": "1"}, {"class": "0"}, {"class": "1"}]
    assert asked.told([4, 1], told().ensemble).tolist() == [1, 0]
    assert told().request(3).labels == (0, 1), "all classes by default"


def test_a_request_changes_nothing():
    """Neither the defaults of the model nor the request that was validated."""
    sampler = told()
    before = sampler.defaults
    sampler.sample(2, steps=2, seed=3, strategy="full")
    assert sampler.defaults is before
    asked = sampler.request(2, steps=2)
    with pytest.raises(AttributeError):
        asked.settings = before  # type: ignore[misc]


def test_a_request_of_any_size_is_small():
    asked = told().request(10**12)
    assert asked.asked(10**12 - 1) == {"class": "1"}


def test_the_posterior_is_of_those_who_serve():
    asked = exact(grouped(3, [1, 1, 1], dims=2, spread=0.1)).request(1, experts=[0, 2], temperature=0.5)
    served = asked.served(torch.tensor([[0.2, 0.5, 0.3]]))
    torch.testing.assert_close(served, torch.tensor([[0.04 / 0.13, 0.0, 0.09 / 0.13]]))


def test_a_sample_of_a_seed_of_its_own_is_the_first_of_that_seed():
    sampler = exact(grouped(2, [4, 4], dims=4, spread=0.2))
    several = sampler.sample(seeds=[7, 3, 7], steps=3)
    assert torch.equal(several[:1], sampler.sample(1, seed=7, steps=3))
    assert torch.equal(several[1:2], sampler.sample(1, seed=3, steps=3))
    assert torch.equal(several[0], several[2])
    asked = sampler.request(seeds=[7, 3])
    assert (asked.num, asked.origin(1), asked.about(1)["seed"]) == (2, (3, 0), "3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seeds": []}, "one for each sample"),
        ({"seeds": [1, -1]}, "numbers from 0 on"),
        ({"seeds": [1, 2], "num": 3}, "3 samples and 2 seeds"),
    ],
)
def test_seeds_that_are_none(wrong, said):
    with pytest.raises(ConfigError, match=said):
        exact(grouped(2, [4, 4], dims=4, spread=0.2)).request(**wrong)


def test_samples_may_begin_with_noise_that_is_given():
    two = exact(grouped(2, [1, 1], dims=2, spread=0.1))
    noise = draws.sample_noise(5, range(4), (2,))
    asked = {"strategy": "oracle", "cluster": [0, 1, 1, 0], "steps": 2}
    assert torch.equal(two.sample(4, noise=noise, **asked), two.sample(4, seed=5, **asked))
    shorter = {**asked, "cluster": [0, 1, 1]}
    torch.testing.assert_close(
        two.sample(3, noise=noise[:3], **shorter), two.sample(4, seed=5, **asked)[:3], atol=1e-5, rtol=0
    )
    request = two.request(4, noise=noise, **asked)
    assert "seed" not in request.about(1), "no seed brings it back"
    assert two.request(4, **asked).about(1)["seed"] == "0"


@pytest.mark.parametrize("noise", [torch.zeros(3, 2), torch.zeros(4, 3), torch.full((4, 2), torch.nan)])
def test_noise_that_cannot_be_begun_with_is_refused(noise):
    with pytest.raises(ConfigError, match=r"noise must be finite and of shape \[4, 2\]"):
        exact(grouped(2, [1, 1], dims=2, spread=0.1)).sample(4, noise=noise)
