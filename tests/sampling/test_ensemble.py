import threading

import pytest
import torch

from atoll.config import NetworkConfig
from atoll.flow import mixture
from atoll.models import conditions
from atoll.models.dit import DiT
from atoll.sampling import building
from atoll.sampling.ensemble import Ensemble
from tests.analytic import grouped
from tests.models.test_dit import awake, captions
from tests.sampling.known import exact, told

NETWORK = NetworkConfig(width=24, depth=1, heads=2, patch=(2, 2))


def test_full_is_the_velocity_of_all_data():
    data = grouped(3, [4, 9, 2], dims=5, spread=0.3)
    x_t, t = torch.randn(8, 5, dtype=torch.float64), torch.rand(8, dtype=torch.float64) * 0.9 + 0.05
    # posterior() is float32 by design, hence the tolerance
    torch.testing.assert_close(exact(data).velocity(x_t, t), data.velocity(x_t, t), rtol=1e-5, atol=1e-5)


def test_asking_part_of_the_batch_is_asking_all_of_it():
    experts = [awake(DiT(NETWORK, (1, 4, 4))) for _ in range(3)]
    for k, expert in enumerate(experts):
        expert.head.bias.data += k
    ensemble = Ensemble(experts, torch.ones(3) / 3, (1, 4, 4))
    x_t, t = torch.randn(6, 1, 4, 4), torch.rand(6)
    weights = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [0, 0, 1], [0.2, 0.3, 0.5], [1, 0, 0]])
    every = torch.stack([expert(x_t, t) for expert in experts])
    expected = torch.einsum("bk,kb...->b...", weights, every)
    found, apart, _ = ensemble.mixed(weights, x_t, t, None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        apart, mixture.combine(weights, mixture.of_everyone(every)).disagreement, atol=1e-5, rtol=1e-4
    )


def test_guidance_by_text_is_the_same_formula():
    expert = awake(DiT(NETWORK, (1, 4, 4), "text", text=6))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), text=6)
    told, x_t, t = captions(2), torch.randn(2, 1, 4, 4), torch.rand(2)
    heard, silent = expert(x_t, t, told), expert(x_t, t, conditions.null(told, 0))
    expected = silent + 3 * (heard - silent)
    torch.testing.assert_close(ensemble.velocity(x_t, t, told, guidance=3.0), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ensemble.velocity(x_t, t), silent, atol=1e-5, rtol=1e-4)


def test_rows_of_many_requests_are_asked_about_together():
    """Each row has its own time, class and guidance, and gets what it would get alone."""
    expert = awake(DiT(NETWORK, (1, 4, 4), "class", classes=3))
    ensemble = Ensemble(
        [expert, awake(DiT(NETWORK, (1, 4, 4), "class", classes=3))], torch.ones(2) / 2, (1, 4, 4), classes=3
    )
    x_t, t, classes = torch.randn(4, 1, 4, 4), torch.tensor([0.9, 0.1, 0.5, 0.5]), torch.tensor([0, 1, 2, 3])
    guidance = torch.tensor([1.0, 2.0, 3.5, 1.0])
    weights = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.2, 0.8]])
    together = ensemble.mixed(weights, x_t, t, classes, guidance).velocity
    for row in range(4):
        one = slice(row, row + 1)
        alone = ensemble.mixed(weights[one], x_t[one], t[one], classes[one], float(guidance[row])).velocity
        torch.testing.assert_close(together[one], alone, atol=1e-5, rtol=1e-5)


def test_several_threads_may_ask_at_once():
    data = grouped(3, [4, 4, 4], dims=4, spread=0.2)
    sampler = exact(data)
    expected = [sampler.sample(6, seed=seed, strategy="full", steps=5) for seed in range(4)]
    made: dict[int, torch.Tensor] = {}

    def work(seed: int) -> None:
        made[seed] = sampler.sample(6, seed=seed, strategy="full", steps=5)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(made[seed], expected[seed]) for seed in range(4))


def test_the_null_condition_stands_where_nothing_is_told():
    ensemble = told().ensemble
    assert ensemble.told(None, 3).tolist() == [2, 2, 2]
    assert exact(grouped(2, [1, 1], dims=2, spread=0.1)).ensemble.told(torch.tensor([1]), 1) is None


def test_rows_that_are_not_guided_are_not_asked_twice():
    sizes = []

    class Expert(torch.nn.Module):
        def forward(self, x_t, t, condition=None):
            sizes.append(len(x_t))
            return x_t * condition[:, None]

    ensemble = Ensemble([Expert()], torch.ones(1), (2,), classes=5)
    x_t, classes = torch.ones(3, 2), torch.tensor([1, 2, 3])
    weights, guidance = torch.ones(3, 1), torch.tensor([1.0, 3.0, 1.0])
    mixed = ensemble.mixed(weights, x_t, torch.ones(3), classes, guidance)
    assert sizes == [4]
    assert mixed.velocity[:, 0].tolist() == [1, 5 + 3 * (2 - 5), 3]


def test_guidance_against_what_experts_began_with_needs_no_condition():
    """v_0 + s (v - v_0) with the start's v_0, in rows that are guided; asked row by row it is the same."""
    expert, start = (awake(DiT(NETWORK, (1, 4, 4))) for _ in range(2))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), weak=start)
    x_t, t, scales = torch.randn(3, 1, 4, 4), torch.rand(3), torch.tensor([1.0, 2.0, 3.0])
    strong, weak = expert(x_t, t), start(x_t, t)
    expected = weak + scales.view(-1, 1, 1, 1) * (strong - weak)
    for guidance in (scales, [float(scale) for scale in scales]):
        if isinstance(guidance, list):
            rows = [
                ensemble.velocity(x_t[i : i + 1], t[i : i + 1], guidance=s) for i, s in enumerate(guidance)
            ]
            found = torch.cat(rows)
        else:
            found = ensemble.velocity(x_t, t, guidance=guidance)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    plain = Ensemble([expert], torch.ones(1), (1, 4, 4))
    torch.testing.assert_close(plain.velocity(x_t, t, guidance=3.0), strong, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("scales", [2.0, [2.0, 3.0, 1.5, 2.5, 4.0], [1.0, 3.0, 1.0, 2.0, 2.0], [1.0] * 5])
def test_a_mixture_is_moved_away_from_the_start_once(scales, most):
    """Σ_k w_k (v_0 + s (v_k - v_0)), one row of one expert after the other; the start is asked once a row."""
    networks = [awake(DiT(NETWORK, (1, 4, 4))) for _ in range(4)]
    experts, start, seen = networks[:3], networks[3], []
    start.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    ensemble = Ensemble(experts, torch.ones(3) / 3, (1, 4, 4), weak=start)
    x_t, t, weights = torch.randn(5, 1, 4, 4), torch.rand(5), torch.rand(5, 3).softmax(1)
    guidance = scales if isinstance(scales, float) else torch.tensor(scales)
    each = torch.full((5,), scales) if isinstance(scales, float) else guidance
    with torch.inference_mode():
        velocity = ensemble.mixed(weights, x_t, t, None, guidance, most=most).velocity
        guided = int((each != 1).sum())
        assert sum(seen) == guided and (max(seen, default=0) <= (most or guided))
        for row in range(5):
            x, time, weak = x_t[row : row + 1], t[row : row + 1], start(x_t[row : row + 1], t[row : row + 1])
            parts = [weak + each[row] * (expert(x, time) - weak) for expert in experts]
            expected = sum(w * part for w, part in zip(weights[row], parts, strict=True))
            torch.testing.assert_close(velocity[row : row + 1], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_start_has_what_the_experts_left_out_would_have_had(guidance):
    """v_0 + g (Σ_{k ∈ S} p_k v_k + (1 - Σ_{k ∈ S} p_k) v_0 - v_0), and what each adds adds up to it."""
    networks = [awake(DiT(NETWORK, (1, 4, 4))) for _ in range(4)]
    experts, start = networks[:3], networks[3]
    ensemble = Ensemble(experts, torch.ones(3) / 3, (1, 4, 4), weak=start)
    x_t, t, posterior = torch.randn(5, 1, 4, 4), torch.rand(5), torch.rand(5, 3).softmax(1)
    weights = mixture.with_rest(mixture.top_k(posterior, 2), posterior)
    with torch.inference_mode():
        mixed = ensemble.mixed(weights, x_t, t, None, guidance, apart=True, rest=True)
        each, weak = torch.stack([expert(x_t, t) for expert in experts], 1), start(x_t, t)
    kept = torch.where(posterior == posterior.min(1, keepdim=True).values, 0, posterior)[
        ..., None, None, None
    ]
    plain = (kept * each).sum(1) + (1 - kept.sum(1)) * weak
    torch.testing.assert_close(mixed.velocity, weak + guidance * (plain - weak), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mixed.parts.sum(1), mixed.velocity, atol=1e-5, rtol=1e-4)


def test_a_start_is_told_what_the_experts_are_told():
    expert, start = (awake(DiT(NETWORK, (1, 4, 4), "class", classes=3)) for _ in range(2))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), classes=3, weak=start)
    x_t, t, classes = torch.randn(2, 1, 4, 4), torch.rand(2), torch.tensor([0, 2])
    expected = start(x_t, t, classes) + 2 * (expert(x_t, t, classes) - start(x_t, t, classes))
    found = ensemble.velocity(x_t, t, classes, guidance=2.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["class", "text"])
def test_a_start_that_is_told_nothing_is_so_whatever_experts_are_told(kind):
    told = {"classes": 3} if kind == "class" else {"text": 6}
    expert, start = (awake(DiT(NETWORK, (1, 4, 4), kind, **told)) for _ in range(2))
    weak = building.Untold(start, told.get("classes", 0))
    ensemble = Ensemble([expert], torch.ones(1), (1, 4, 4), weak=weak, **told)
    x_t, t = torch.randn(2, 1, 4, 4), torch.rand(2)
    condition = torch.tensor([0, 2]) if kind == "class" else captions(2, 6)
    nothing = start(x_t, t, conditions.nothing(kind, 2, 3, 6))
    expected = nothing + 2 * (expert(x_t, t, condition) - nothing)
    found = ensemble.velocity(x_t, t, condition, guidance=2.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
