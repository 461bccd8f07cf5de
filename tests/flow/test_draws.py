import pytest
import torch

from atoll.flow import draws, gaussian


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


def basis(rank, *shape):
    """Orthonormal directions, made by hand from a QR decomposition."""
    source = torch.Generator().manual_seed(4)
    return torch.linalg.qr(torch.randn(torch.Size(shape).numel(), rank, generator=source))[0].T.view(
        rank, *shape
    )


def test_matched_noise_has_the_moments_that_it_has_on_the_average():
    noise, groups = draws.sample_noise(0, range(48), (3, 4)), torch.arange(48) % 3
    directions = basis(5, 3, 4)
    matched = draws.matched(noise, groups, directions)
    for group in range(3):
        assert matched[groups == group].mean(0).abs().max() < 1e-6
    along = matched.flatten(1).double() @ directions.flatten(1).double().T
    torch.testing.assert_close(along.T @ along / 48, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
    assert 0.9 < matched.std() < 1.1
    assert torch.equal(matched, draws.matched(noise, groups, directions))
    assert noise.mean(0).abs().max() > 0.1, "and what was given is left as it was"


@pytest.mark.parametrize(("count", "groups"), [(1, [0]), (2, [0, 1]), (3, [0, 0, 1]), (4, [0, 0, 0, 0])])
def test_of_few_numbers_little_is_matched(count, groups):
    """Of a group of one there is no mean, and few numbers have no covariance along many directions."""
    noise = draws.sample_noise(0, range(count), (6,))
    matched = draws.matched(noise, torch.tensor(groups), basis(4, 6))
    assert matched.isfinite().all()
    if len(set(groups)) == count:
        torch.testing.assert_close(matched, noise)


def test_chance_moves_no_moment_of_a_gaussian_that_begins_with_matched_noise():
    """Its samples are linear in their noise, so mean and variances along its directions are exact."""
    known = gaussian.Gaussian(
        torch.randn(8, generator=torch.Generator().manual_seed(1)),
        basis(3, 8),
        torch.tensor([4.0, 2.0, 0.5]),
        torch.tensor(0.1),
    )
    noise = draws.sample_noise(3, range(32), (8,))
    begins = draws.matched(noise, torch.zeros(32, dtype=torch.long), known.basis)
    for given, near in ((begins, 1e-5), (noise, None)):
        away = gaussian.flowed(known, given, torch.zeros(32)) - known.mean
        error = max(
            float(away.mean(0).abs().max()),
            float(((away @ known.basis.T).square().mean(0) - known.variances).abs().max()),
        )
        assert error < near if near else error > 0.2
