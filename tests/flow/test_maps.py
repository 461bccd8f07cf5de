"""Targets of students against exact Gaussians: closed-form flow maps, exact experts, exact posteriors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from atoll.flow import draws, maps, mixture, path, solver
from tests.analytic import GaussianMixture, sliced_wasserstein

WIDTH = 0.3
MEAN = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)


def spread(t: Tensor, width: float = WIDTH) -> Tensor:
    """The width of N(mean, width²) noised to t."""
    return ((1 - t) ** 2 * width**2 + t**2).sqrt()


def gaussian_map(x_t: Tensor, t: Tensor, r: Tensor, mean: Tensor = MEAN, width: float = WIDTH) -> Tensor:
    """Where the flow of one Gaussian takes x_t: it keeps the distance from the mean in widths."""
    ratio = spread(r, width) / spread(t, width)
    return (1 - r)[:, None] * mean + ratio[:, None] * (x_t - (1 - t)[:, None] * mean)


def gaussian_average(x_t: Tensor, t: Tensor, r: Tensor) -> Tensor:
    """Its average velocity, for r < t."""
    return (x_t - gaussian_map(x_t, t, r)) / (t - r)[:, None]


def gaussian_velocity(x_t: Tensor, t: Tensor) -> Tensor:
    return GaussianMixture(MEAN[None], WIDTH, torch.zeros(1, dtype=torch.long), 1).velocity(x_t, t)


def points(num: int = 64, dims: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, t, r with r < t."""
    g = torch.Generator().manual_seed(0)
    times = torch.rand(2, num, generator=g, dtype=torch.float64).sort(0).values
    return torch.randn(num, dims, generator=g, dtype=torch.float64), times[1], times[0]


def test_the_map_of_a_gaussian_is_the_integral_of_its_velocity():
    noise = points()[0]
    end, start = torch.zeros(len(noise)).double(), torch.ones(len(noise)).double()
    integrated = solver.integrate(gaussian_velocity, noise, 1000)
    torch.testing.assert_close(integrated, gaussian_map(noise, start, end), rtol=0, atol=2e-3)


def test_the_average_velocity_of_no_time_is_the_velocity():
    x_t, t, _ = points()
    t = t.clamp(min=0.05)
    torch.testing.assert_close(
        gaussian_average(x_t, t, t - 1e-6), gaussian_velocity(x_t, t), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(maps.meanflow_target(x_t, 7 * x_t, t, t), x_t)  # there the velocity is the target


def test_landing_and_the_average_velocity_are_inverse():
    x_t, t, r = points()
    x_r = gaussian_map(x_t, t, r)
    torch.testing.assert_close(maps.land(x_t, t, r, maps.along(x_t, t, x_r, r)), x_r)
    torch.testing.assert_close(maps.along(x_t, t, x_r, r), gaussian_average(x_t, t, r))


def test_maps_agree_over_split_intervals():
    """(t - r) u(x_t, t, r) = (t - s) u(x_t, t, s) + (s - r) u(x_s, s, r)."""
    x_t, t, r = points()
    s = (t + r) / 2
    x_s = maps.land(x_t, t, s, gaussian_average(x_t, t, s))
    split = (t - s)[:, None] * gaussian_average(x_t, t, s) + (s - r)[:, None] * gaussian_average(x_s, s, r)
    torch.testing.assert_close((t - r)[:, None] * gaussian_average(x_t, t, r), split)
    torch.testing.assert_close(maps.two_steps(gaussian_average, x_t, t, r), gaussian_average(x_t, t, r))


def test_jumps_of_the_exact_map_end_alike_in_any_number_of_steps():
    noise = points()[0]
    one = solver.integrate(gaussian_average, noise, 1, solver.jump)
    for steps in (2, 4, 8):
        torch.testing.assert_close(solver.integrate(gaussian_average, noise, steps, solver.jump), one)


@pytest.mark.parametrize("delta", [5e-3, 1e-3])
def test_the_slope_is_the_derivative_along_the_trajectory(delta):
    x_t, t, r = points()
    t, r = t.clamp(0.1, 0.99), r * 0.5
    t = torch.maximum(t, r + 0.05)
    v = gaussian_velocity(x_t, t)
    moved = torch.zeros_like(t, requires_grad=True)  # along the trajectory: by autograd
    u = gaussian_average(x_t + moved[:, None] * v, t + moved, r)
    columns = [torch.autograd.grad(u[:, d].sum(), moved, retain_graph=True)[0] for d in range(3)]
    exact = torch.stack(columns, dim=1)
    found = maps.slope(gaussian_average, x_t, t, r, v, delta)
    assert (found - exact).abs().max() < 500 * delta**2  # of order two


def test_the_slope_never_leaves_the_times_that_there_are():
    asked: list[Tensor] = []

    def average(x_t: Tensor, t: Tensor, r: Tensor) -> Tensor:
        assert (t <= 1).all() and (t >= r).all()
        asked.append(t)
        return x_t

    t, r = torch.tensor([1.0, 0.3, 0.002, 1.0]), torch.tensor([0.0, 0.299, 0.0, 1.0])
    x_t, v = torch.randn(4, 2), torch.ones(4, 2)
    found = maps.slope(average, x_t, t, r, v, 5e-3)
    assert len(asked) == 2
    torch.testing.assert_close(found[:3], v[:3], rtol=1e-3, atol=1e-3)  # d x_t / dt along the way
    assert found.isfinite().all()


def test_the_exact_map_is_what_meanflow_aims_at():
    x_t, t, r = points()
    t = torch.maximum(t.clamp(0.1, 0.99), r + 0.05).clamp(max=0.995)
    v = gaussian_velocity(x_t, t)
    slope = maps.slope(gaussian_average, x_t, t, r, v, 1e-4)
    torch.testing.assert_close(
        maps.meanflow_target(v, slope, t, r), gaussian_average(x_t, t, r), rtol=0, atol=1e-4
    )


def test_a_trajectory_is_what_a_solver_visits():
    noise = points()[0]
    way = maps.trajectory(gaussian_velocity, noise, 5)
    assert way.shape == (6, *noise.shape)
    assert torch.equal(way[0], noise)
    assert torch.equal(way[-1], solver.integrate(gaussian_velocity, noise, 5))
    second = maps.trajectory(gaussian_velocity, noise, 5, solver.DPM())
    assert torch.equal(second[-1], solver.integrate(gaussian_velocity, noise, 5, solver.DPM()))
    assert not torch.equal(second[3], way[3])


def test_losses_are_weighed_by_their_size():
    loss = torch.tensor([0.0, 1.0, 100.0], requires_grad=True)
    weighed = maps.weighed(loss, 1.0, 1e-3)
    torch.testing.assert_close(weighed.detach(), torch.tensor([0.0, 1 / 1.001, 100 / 100.001]))
    torch.autograd.backward(weighed.sum())
    torch.testing.assert_close(loss.grad, torch.tensor([1000.0, 1 / 1.001, 1 / 100.001]))
    assert torch.equal(maps.weighed(loss, 0.0, 1e-3), loss)


def test_two_times_of_a_pair():
    drawn = draws.training_draws(0, "job", 0, (40_000, 1), 0.0, pairs=0.25)
    apart = drawn.r < drawn.t
    assert abs(apart.float().mean() - 0.25) < 0.01
    assert torch.equal(drawn.r[~apart], drawn.t[~apart])
    assert abs(drawn.t[apart].mean() - 2 / 3) < 0.01 and abs(drawn.r[apart].mean() - 1 / 3) < 0.01
    plain = draws.training_draws(0, "job", 0, (40_000, 1), 0.0)
    assert torch.equal(plain.t, plain.r) and torch.equal(plain.noise, drawn.noise)
    assert torch.equal(plain.t[~apart], drawn.t[~apart])


# --- one expert teaches as well as all of them -------------------------------------------------------------

DATA = GaussianMixture(
    torch.tensor([[1.5, 0.0], [-0.8, 1.2], [-0.6, -1.4], [0.3, 0.4]], dtype=torch.float64),
    0.25,
    torch.tensor([0, 1, 1, 2]),
    3,
)
"""Clusters of a quarter, a half and a quarter of the data."""


def by_label(data: GaussianMixture, x_t: Tensor, t: Tensor, cluster: Tensor) -> Tensor:
    """The velocity of each sample's own expert."""
    every = torch.stack([data.velocity(x_t, t, k) for k in range(data.clusters)])
    return mixture.combine(
        mixture.one_hot(cluster, data.clusters).double(), mixture.of_everyone(every)
    ).velocity


def probes(x_t: Tensor, t: Tensor) -> Tensor:
    """Functions of x_t and t against which a difference must vanish if its conditional mean does."""
    columns = [torch.ones_like(t), *x_t.unbind(1), (3 * x_t).sin()[:, 0], x_t.prod(1), (6 * t).cos()]
    return torch.stack(columns, dim=1)


def correlations(difference: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
    """Means of difference times probe, in standard errors."""
    products = torch.einsum("bd,bp->bdp", difference, probes(x_t, t)).flatten(1)
    return products.mean(0).abs() / (products.std(0) / len(products) ** 0.5).clamp(min=1e-12)


def noised(num: int, balanced: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, t and clusters of samples drawn in their natural shares, or as many of each cluster."""
    x_0, cluster = DATA.draw(num, seed=3)
    if balanced:
        least = min(int((cluster == k).sum()) for k in range(3))
        kept = torch.cat([(cluster == k).nonzero()[:least, 0] for k in range(3)])
        x_0, cluster = x_0[kept], cluster[kept]
    g = torch.Generator().manual_seed(4)
    t = torch.rand(len(x_0), generator=g, dtype=torch.float64) * 0.96 + 0.02
    noise = torch.randn(x_0.shape, generator=g, dtype=torch.float64)
    return path.point(x_0, noise, t), t, cluster


def test_the_velocity_of_single_clusters_is_that_of_each_expert():
    x_t, t, cluster = noised(1000)
    torch.testing.assert_close(DATA.velocity(x_t, t, cluster), by_label(DATA, x_t, t, cluster))


def test_the_labelled_expert_averages_to_the_ensemble():
    """Its mean given x_t is the ensemble's velocity: no probe of 200,000 samples sees a difference.

    Twelve means within four standard errors: chance fails one time in a thousand, and draws are fixed.
    """
    x_t, t, cluster = noised(200_000)
    difference = by_label(DATA, x_t, t, cluster) - DATA.velocity(x_t, t)
    assert difference.abs().mean() > 0.1  # single targets do differ
    assert correlations(difference, x_t, t).max() < 4


def test_shares_that_are_not_natural_teach_another_mixture():
    x_t, t, cluster = noised(200_000, balanced=True)
    difference = by_label(DATA, x_t, t, cluster) - DATA.velocity(x_t, t)
    assert correlations(difference, x_t, t).max() > 15


def test_an_expert_drawn_from_the_posterior_averages_to_the_ensemble():
    x_t, t, _ = noised(200_000)
    uniform = torch.rand(len(x_t), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    drawn = mixture.draw(DATA.posterior(x_t, 1 - t, t), uniform)
    difference = by_label(DATA, x_t, t, drawn) - DATA.velocity(x_t, t)
    assert correlations(difference, x_t, t).max() < 4


def small_map(seed: int = 0) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Any smooth function of x_t, t and r."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).double().requires_grad_(False)
    return lambda x_t, t, r: network(torch.cat([x_t, t[:, None], r[:, None]], dim=1))


def test_meanflow_by_the_labelled_expert_averages_to_meanflow_by_the_ensemble():
    """The target is affine in the velocity, so both distillations may be one."""
    x_t, t, cluster = noised(200_000)
    r, average = t * 0.3, small_map()

    def target(v: Tensor) -> Tensor:
        return maps.meanflow_target(v, maps.slope(average, x_t, t, r, v, 5e-3), t, r)

    difference = target(by_label(DATA, x_t, t, cluster)) - target(DATA.velocity(x_t, t))
    assert correlations(difference, x_t, t).max() < 4


def test_two_steps_by_the_labelled_expert_do_not():
    """Progressive distillation moves x_t by the first velocity: there the teacher must be one model."""
    x_t, t, cluster = noised(200_000)

    def expert(x: Tensor, time: Tensor, _: Tensor) -> Tensor:
        return by_label(DATA, x, time, cluster)

    def whole(x: Tensor, time: Tensor, _: Tensor) -> Tensor:
        return DATA.velocity(x, time)

    r = t * 0.1
    difference = maps.two_steps(expert, x_t, t, r) - maps.two_steps(whole, x_t, t, r)
    assert correlations(difference, x_t, t).max() > 15


def test_few_step_experts_must_not_be_averaged():
    """Exact maps of exact experts, weighed by the exact posterior, give a blur: at noise, the mean of all."""
    means = torch.tensor([[1.5, 0.0], [-1.0, 1.0], [-0.5, -1.0]], dtype=torch.float64)
    data = GaussianMixture(means, 0.2, torch.arange(3), 3)
    noise = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    end, start = torch.zeros(4000).double(), torch.ones(4000).double()
    each = torch.stack([gaussian_map(noise, start, end, mean, 0.2) for mean in means])
    real = data.draw(4000, seed=1)[0]
    blur = mixture.combine(data.posterior(noise, end, start), mixture.of_everyone(each)).velocity
    assert blur.std(0).max() < 0.25 < 0.8 < real.std(0).min()
    chosen = torch.randint(3, (4000,), generator=torch.Generator().manual_seed(2))
    ancestral = each[chosen, torch.arange(4000)]
    whole = solver.integrate(data.velocity, noise, 100)
    floor = sliced_wasserstein(real, data.draw(4000, seed=2)[0])
    assert sliced_wasserstein(ancestral, real) < 2 * floor
    assert sliced_wasserstein(whole, real) < 3 * floor
    assert sliced_wasserstein(blur, real) > 10 * floor


# --- students of two dimensions, trained in seconds --------------------------------------------------------


class Plane(nn.Module):
    """u(x_t, t, r) of points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(12, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2)
        )

    def forward(self, x_t: Tensor, t: Tensor, r: Tensor) -> Tensor:
        angles = t[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0])
        features = [x_t, angles.sin(), angles.cos(), (t - r)[:, None], (t - r)[:, None].square()]
        return self.body(torch.cat(features, dim=1))


def taught(steps: int, network: nn.Module, loss: Callable[[int], Tensor], lr: float = 3e-3) -> nn.Module:
    """Adam with a learning rate that falls to zero, and an average of the last weights."""
    optimiser = torch.optim.Adam(network.parameters(), lr=lr)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * (1 - step / steps)
        optimiser.zero_grad()
        torch.autograd.backward(loss(step).mean())
        optimiser.step()
    return network.requires_grad_(False)


def drawn_batch(
    step: int, pairs: float = 0.0, batch: int = 512
) -> tuple[draws.TrainingDraws, Tensor, Tensor]:
    x_0, cluster = DATA.draw(batch, seed=10_000 + step)
    drawn = draws.training_draws(0, "plane", step, (batch, 2), 0.0, pairs=pairs)
    return drawn, path.point(x_0.float(), drawn.noise, drawn.t), cluster


def label_velocity(x_t: Tensor, t: Tensor, cluster: Tensor) -> Tensor:
    return DATA.velocity(x_t.double(), t.double().clamp(min=1e-3), cluster).float()


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    """A student taught by the expert of each sample alone."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = Plane()

    def loss(step: int) -> Tensor:
        drawn, x_t, cluster = drawn_batch(step)
        return maps.distillation_loss(student(x_t, drawn.t, drawn.t), label_velocity(x_t, drawn.t, cluster))

    return taught(600, student, loss, 1e-2)


def shares(samples: Tensor) -> Tensor:
    nearest = torch.cdist(samples.double(), DATA.means).argmin(1)
    return torch.bincount(DATA.cluster[nearest], minlength=3).double() / len(samples)


def start(num: int) -> Tensor:
    return torch.randn(num, 2, generator=torch.Generator().manual_seed(6))


@pytest.mark.thorough
def test_a_student_of_single_experts_keeps_the_shares_of_the_clusters(dense):
    samples = solver.integrate(lambda x_t, t: dense(x_t, t, t), start(8000), 25)
    sampling_error = 3 * (DATA.priors * (1 - DATA.priors) / 8000).sqrt()  # 0.017 at most
    assert ((shares(samples) - DATA.priors).abs() < 0.01 + sampling_error).all(), shares(samples)
    real = DATA.draw(4000, seed=1)[0]
    assert sliced_wasserstein(samples[:4000], real) < 0.07


@pytest.mark.thorough
def test_a_flow_map_needs_few_steps(dense):
    """Trajectories of the teacher first, then MeanFlow by the labelled expert itself: one network for all."""
    student = Plane()
    student.load_state_dict(dense.state_dict())
    way_times = torch.tensor(solver.times(16))

    def on_trajectories(step: int) -> Tensor:
        g = draws.generator(0, "trajectories", step)
        way = maps.trajectory(lambda x, t: dense(x, t, t), torch.randn(32, 2, generator=g), 16)
        pairs = torch.rand(256, 17, generator=g).argsort(1)[:, :2].sort(1).values
        row = torch.randint(32, (256,), generator=g)
        x_t, x_r = way[pairs[:, 0], row], way[pairs[:, 1], row]
        t, r = way_times[pairs[:, 0]], way_times[pairs[:, 1]]
        return maps.distillation_loss(student(x_t, t, r), maps.along(x_t, t, x_r, r))

    student = taught(250, student, on_trajectories)
    warm = {steps: error(student, steps) for steps in (1, 2, 4)}
    plain = sliced_wasserstein(
        solver.integrate(lambda x_t, t: dense(x_t, t, t), start(4000), 4), DATA.draw(4000, seed=1)[0]
    )
    assert warm[4] < 0.5 * plain, (warm, plain)

    plainly = meanflow(student, power=0.0)
    found = {steps: error(plainly, steps) for steps in (1, 2, 4, 8)}
    assert max(found.values()) < 0.12, (found, warm)
    assert found[8] <= found[1], found
    biased = error(meanflow(student, power=1.0), 8)
    assert biased > 2 * found[8], (biased, found)  # why single experts teach without weights


def meanflow(start: nn.Module, power: float) -> nn.Module:
    """MeanFlow by the labelled expert."""
    student = Plane()
    student.load_state_dict(start.state_dict())

    def loss(step: int) -> Tensor:
        drawn, x_t, cluster = drawn_batch(step, pairs=0.5, batch=256)
        v = label_velocity(x_t, drawn.t, cluster)
        with torch.no_grad():
            slope = maps.slope(student, x_t, drawn.t, drawn.r, v, 5e-3)
        target = maps.meanflow_target(v, slope, drawn.t, drawn.r)
        return maps.weighed(maps.distillation_loss(student(x_t, drawn.t, drawn.r), target), power, 1e-3)

    return taught(350, student, loss, 1e-3)


def error(student: nn.Module, steps: int) -> float:
    samples = solver.integrate(student, start(4000), steps, solver.jump)
    return sliced_wasserstein(samples, DATA.draw(4000, seed=1)[0])


def test_steps_of_walks_by_hand():
    t = torch.tensor([0.0, 0.3, 0.5, 0.51, 1.0, 0.9])
    uniform = torch.tensor([0.0, 0.7, 0.4, 0.4, 0.99, 1.0])
    starts, ends = maps.step_of_a_walk(t, uniform, [1, 2, 4])
    assert starts.tolist() == [1.0, 0.5, 0.5, 1.0, 1.0, 1.0]
    assert ends.tolist() == [0.0, 0.25, 0.0, 0.5, 0.75, 0.75]
