import math

import pytest
import torch

from atoll.flow import solver


def error(step: solver.Step, steps: int) -> float:
    """dx/dt = (2 t + 1) x from t = 1 to 0: x(0) = x(1) exp(-2)."""

    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (2 * t + 1)[:, None] * x_t

    x_1 = torch.ones(1, 1, dtype=torch.float64)
    return abs(solver.integrate(velocity, x_1, steps, step).item() - math.exp(-2))


@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("heun", 2)])
def test_convergence_order(name, order):
    step = solver.SOLVERS[name]()
    measured = math.log2(error(step, 64) / error(step, 128))
    assert abs(measured - order) < 0.1


@pytest.mark.parametrize("name", list(solver.SOLVERS))
def test_a_straight_path_is_followed_exactly_in_one_step(name):
    x_0, noise = torch.randn(2, 3, 4, dtype=torch.float64)
    end = solver.integrate(lambda x_t, t: noise - x_0, noise, 1, solver.SOLVERS[name]())
    torch.testing.assert_close(end, x_0)


def test_the_grid_runs_from_noise_to_data():
    grid = solver.times(4)
    assert grid == [1, 0.75, 0.5, 0.25, 0]
    seen: list[float] = []

    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append(t[0].item())
        return x_t

    solver.integrate(velocity, torch.zeros(1, 1), 4)
    assert seen == grid[:-1]


def test_half_precision_states_get_times_in_single():
    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert t.dtype == torch.float32
        return torch.zeros_like(x_t)

    solver.integrate(velocity, torch.zeros(1, 1, dtype=torch.bfloat16), 3)


def test_every_step_is_reported():
    steps: list[int] = []
    solver.integrate(lambda x, t: x, torch.zeros(1, 1), 3, on_step=steps.append)
    assert steps == [1, 2, 3]


def gaussian(scale: float) -> solver.Velocity:
    """Data N(0, scale²): E[noise - x_0 | x_t] = x_t (t - (1 - t) scale²) / ((1 - t)² scale² + t²)."""

    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t = t[:, None]
        return x_t * (t - (1 - t) * scale**2) / ((1 - t) ** 2 * scale**2 + t**2)

    return velocity


def test_dpm_is_of_order_two_and_better_than_euler():
    """Noise x_1 ends at scale · x_1."""
    x_1 = torch.ones(1, 1, dtype=torch.float64)

    def wrong(name: str, steps: int) -> float:
        end = solver.integrate(gaussian(0.3), x_1, steps, solver.SOLVERS[name]())
        return abs(end.item() - 0.3)

    # not quite two: the steps at the ends, where λ is infinite, are of order one
    assert 1.5 < math.log2(wrong("dpm++", 80) / wrong("dpm++", 160)) < 2.3
    assert wrong("dpm++", 20) < wrong("euler", 20) / 5


def test_dpm_asks_once_per_step_and_forgets_between_integrations():
    asked = 0

    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return gaussian(0.5)(x_t, t)

    x_1 = torch.randn(3, 2, dtype=torch.float64)
    first = solver.integrate(velocity, x_1, 10, solver.SOLVERS["dpm++"]())
    assert asked == 10
    assert torch.equal(first, solver.integrate(velocity, x_1, 10, solver.SOLVERS["dpm++"]()))


def test_shift_by_hand():
    assert solver.times(2, shift=3.0) == [1.0, 0.75, 0.0]  # 3 · 0.5 / (1 + 2 · 0.5)
    shifted = solver.times(10, shift=3.0)
    assert shifted == sorted(shifted, reverse=True)
    torch.testing.assert_close(
        solver.integrate(gaussian(0.5), torch.ones(1, 1, dtype=torch.float64), 400, solver.heun, shift=3.0),
        torch.full((1, 1), 0.5, dtype=torch.float64),
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++"])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_when_a_solver_asks_is_known_before(name, shift):
    seen: list[float] = []

    def velocity(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append(float(t[0]))
        return gaussian(0.5)(x_t, t)

    solver.integrate(velocity, torch.ones(1, 1, dtype=torch.float64), 7, solver.SOLVERS[name](), shift=shift)
    assert solver.asked(name, 7, shift) == seen


def test_rows_may_be_at_times_of_their_own():
    x_t, now, then = torch.randn(3, 2), torch.tensor([1.0, 0.5, 0.2]), torch.tensor([0.9, 0.25, 0.0])
    together = solver.euler(gaussian(0.5), x_t, now, then)
    for row in range(3):
        one = slice(row, row + 1)
        alone = solver.euler(gaussian(0.5), x_t[one], float(now[row]), float(then[row]))
        torch.testing.assert_close(together[one], alone)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("name", list(solver.SOLVERS))
def test_a_solver_as_a_recursion_is_the_solver(name, steps, shift):
    """Whatever the velocity: here one that is neither linear nor the same anywhere."""

    def velocity(x_t, t):
        return torch.sin(3 * x_t) * (1 + t[:, None]) + x_t.flip(1) * t[:, None]

    noise = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x_t, memory = noise, torch.zeros_like(noise)
    moves = solver.moves(name, steps, shift)
    assert [move.t for move in moves] == solver.asked(name, steps, shift)
    for move in moves:
        coefficients = torch.tensor(move, dtype=torch.float64).expand(4, -1)
        x_t, memory = solver.moved(coefficients, x_t, velocity(x_t, coefficients[:, 0]), memory)
    expected = solver.integrate(velocity, noise, steps, solver.SOLVERS[name](), shift=shift)
    torch.testing.assert_close(x_t, expected, atol=1e-12, rtol=1e-12)


def test_rows_of_different_solvers_move_together():
    """Each row has coefficients of its own, and comes to where it would have come alone."""

    def velocity(x_t, t):
        return torch.cos(x_t) * (1 + t[:, None])

    noise = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    names = list(solver.SOLVERS)
    ways = [solver.moves(name, steps) for name, steps in zip(names, (9, 5, 9), strict=True)]
    x_t, memory = noise, torch.zeros_like(noise)
    for now in zip(*ways, strict=True):
        coefficients = torch.tensor(now, dtype=torch.float64)
        x_t, memory = solver.moved(coefficients, x_t, velocity(x_t, coefficients[:, 0]), memory)
    for row, (name, steps) in enumerate(zip(names, (9, 5, 9), strict=True)):
        alone = solver.integrate(velocity, noise[row : row + 1], steps, solver.SOLVERS[name]())
        torch.testing.assert_close(x_t[row : row + 1], alone, atol=1e-12, rtol=1e-12)


def test_the_recursion_of_a_flow_map_says_where_each_step_ends():
    moves = solver.moves("euler", 4)
    assert [(move.t, move.t_next, move.b) for move in moves] == [
        (1, 0.75, -0.25),
        (0.75, 0.5, -0.25),
        (0.5, 0.25, -0.25),
        (0.25, 0, -0.25),
    ]


def test_a_move_without_memory_is_the_same_to_the_bit():
    assert [move.remembers for move in solver.moves("euler", 3)] == [False] * 3
    assert [move.remembers for move in solver.moves("heun", 2)] == [True, True, False]
    assert all(move.remembers for move in solver.moves("dpm++", 3))
    x_t, velocity, memory = torch.randn(3, 2, 4, 5).unbind(0)
    now = torch.tensor(solver.moves("euler", 2), dtype=torch.float32)
    x_next, kept = solver.moved(now, x_t, velocity, None)
    assert kept is None
    assert torch.equal(x_next, solver.moved(now, x_t, velocity, memory)[0])
