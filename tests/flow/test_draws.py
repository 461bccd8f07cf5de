import torch

from atoll.flow import draws


def test_draws_are_a_function_of_seed_job_and_step():
    first = draws.training_draws(3, "expert-00", 17, (4, 1, 2, 2), 0.5)
    torch.manual_seed(99)  # the history of the process does not enter
    again = draws.training_draws(3, "expert-00", 17, (4, 1, 2, 2), 0.5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in [(4, "expert-00", 17), (3, "expert-01", 17), (3, "expert-00", 18)]:
        assert not torch.equal(first.noise, draws.training_draws(*other, (4, 1, 2, 2), 0.5).noise)


def test_distributions():
    drawn = draws.training_draws(0, "job", 0, (20_000, 1, 2), 0.25)
    assert 0 <= drawn.t.min() and drawn.t.max() < 1
    assert abs(drawn.t.mean() - 0.5) < 0.01
    assert abs(drawn.noise.std() - 1) < 0.02
    assert abs(drawn.dropped.float().mean() - 0.25) < 0.01


def test_a_sample_depends_on_its_index_and_not_on_its_company():
    many, one = draws.sample_noise(5, range(10), (2, 3)), draws.sample_noise(5, [7], (2, 3))
    assert torch.equal(many[7], one[0])
    assert torch.equal(draws.sample_uniform(5, range(10), "a")[7:8], draws.sample_uniform(5, [7], "a"))
    assert not torch.equal(draws.sample_uniform(5, [7], "a"), draws.sample_uniform(5, [7], "b"))


def test_logit_normal_times_have_a_normal_logit():
    drawn = draws.training_draws(0, "job", 0, (20_000, 1), 0.0, times="logit-normal")
    logit = drawn.t.double().logit()
    assert abs(logit.mean()) < 0.02
    assert abs(logit.std() - 1) < 0.02
    assert torch.equal(drawn.noise, draws.training_draws(0, "job", 0, (20_000, 1), 0.0).noise)


def test_shifted_times_by_hand():
    """Shift 3 at t = 0.5: 1.5 / 2; the ends stay; it adds ln 3 to the logit."""
    t = torch.tensor([0.0, 0.5, 1.0])
    assert draws.shifted(t, 3.0).tolist() == [0.0, 0.75, 1.0]
    inner = torch.rand(100, dtype=torch.float64) * 0.8 + 0.1
    torch.testing.assert_close(
        draws.shifted(inner, 3.0).logit(), inner.logit() + torch.tensor(3.0).double().log()
    )


def test_times_of_a_span_are_those_of_the_law_that_fall_into_it():
    """Against rejection: what is drawn within a span has the quantiles of what falls there by itself."""
    for law in ({"times": "uniform"}, {"times": "logit-normal"}, {"times": "logit-normal", "shift": 3.0}):
        free = draws.training_draws(0, "job", 0, (200_000, 1), 0.0, **law).t
        bound = draws.training_draws(1, "job", 0, (50_000, 1), 0.0, span=(0.5, 0.8), **law).t
        assert 0.5 <= bound.min() and bound.max() <= 0.8
        shares = torch.tensor([0.1, 0.5, 0.9])
        kept = free[(free >= 0.5) & (free <= 0.8)]
        torch.testing.assert_close(bound.quantile(shares), kept.quantile(shares), atol=0.005, rtol=0)
