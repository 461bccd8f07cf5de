import pytest
import torch

from atoll import threads
from atoll.sampling import opening
from atoll.sampling.parts import resolve
from atoll.sampling.rows import Rows, moves_of, started
from tests.serving import same, served

STRATEGIES = ["full", "top-1", "threshold-0.3", "nucleus-0.8", "sample-2", "ancestral", "auto"]


@pytest.fixture
def sampler(tmp_path):
    return opening.open_run_model(served(tmp_path / "run", "class"))


def joined(rows, sampler, owner, request, indices=None):
    strategy = resolve(sampler.ensemble, request)[0]
    rows.join(started(sampler.ensemble, owner, request, strategy, indices or range(request.num)))


def drawn(rows, owner):
    """Step until all rows of an owner are done, and let others leave when they are."""
    done = {}
    while any(row.owner == owner for row in rows.rows):
        rows.step()
        numbers = [number for number, row in enumerate(rows.rows) if row.done]
        for number, x in zip(numbers, rows.x(numbers), strict=True):
            if rows.rows[number].owner == owner:
                done[rows.rows[number].index] = x
        rows.leave(numbers)
    return torch.stack([done[index] for index in sorted(done)])


def close(left, right):
    """Within 1e-5 of the size of the numbers: these networks are random, and theirs are not near one."""
    return (left - right).abs().max() <= 1e-5 * right.abs().max().clamp(min=1)


@pytest.mark.each(7)
@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sample_does_not_depend_on_its_company(sampler, strategy, solver):
    request = sampler.request(num=5, strategy=strategy, solver=solver, steps=4, seed=3, guidance=1.5)
    crowd: Rows[str] = Rows(sampler.ensemble, most=4)
    other = sampler.request(num=6, strategy="full", solver="heun", steps=7, shift=2.0, seed=9)
    joined(crowd, sampler, "other", other)
    crowd.step()
    joined(crowd, sampler, "mine", request)
    assert close(drawn(crowd, "mine"), sampler.sample(num=5, **_said(request)))


def _said(request):
    return request.settings.model_dump(include={"strategy", "solver", "steps", "seed", "guidance"})


def test_bits_are_equal_where_the_batch_has_the_same_shape(sampler):
    """Others in the same places, at other times and with other wishes, change nothing."""
    request = sampler.request(num=2, strategy="ancestral", steps=4, seed=3)
    results = []
    for seed, steps in ((1, 6), (2, 9)):
        crowd: Rows[str] = Rows(sampler.ensemble)
        joined(crowd, sampler, "mine", request)
        cluster = [row.expert for row in crowd.rows]
        other = sampler.request(num=2, strategy="oracle", cluster=cluster, steps=steps, seed=seed)
        joined(crowd, sampler, "other", other)
        results.append(drawn(crowd, "mine"))
    assert same(*results)


def test_every_expert_is_asked_once_about_all_rows_that_need_it(sampler):
    asked = []

    class Counted(torch.nn.Module):
        def __init__(self, expert, number):
            super().__init__()
            self.expert, self.number = expert, number

        def forward(self, x_t, t, condition=None):
            asked.append((self.number, len(x_t), sorted({round(float(value), 3) for value in t})))
            return self.expert(x_t, t, condition)

    experts = [Counted(sampler.ensemble.experts[k], k) for k in range(2)]
    ensemble = type(sampler.ensemble)(**{**vars(sampler.ensemble), "experts": experts})
    crowd: Rows[str] = Rows(ensemble)
    for owner, steps, guidance in (("a", 4, 1.0), ("b", 5, 1.0), ("c", 5, 2.0)):
        request = sampler.request(num=2, steps=steps, seed=1, guidance=guidance, strategy="full")
        crowd.join(started(ensemble, owner, request, "full", range(2)))
        crowd.step()
    asked.clear()
    crowd.step()
    # six rows, and the unconditional half of the two that are guided, at three different times
    assert asked == [(k, 8, [0.25, 0.6, 0.8]) for k in range(2)]


def test_only_those_move_whose_turn_it_is(sampler):
    request = sampler.request(num=3, steps=4, strategy="full")
    crowd: Rows[str] = Rows(sampler.ensemble)
    joined(crowd, sampler, "mine", request)
    before = crowd.x([0, 1, 2]).clone()
    crowd.step([0, 2])
    assert [row.at for row in crowd.rows] == [1, 0, 1]
    assert same(crowd.x([1]), before[1:2])
    assert not torch.equal(crowd.x([2]), before[2:])
    assert close(drawn(crowd, "mine"), sampler.sample(num=3, steps=4, strategy="full"))


def test_shares_are_those_of_the_sampler(sampler):
    request = sampler.request(num=4, steps=5, strategy="full", solver="heun")
    crowd: Rows[str] = Rows(sampler.ensemble)
    joined(crowd, sampler, "mine", request)
    for _ in moves_of(sampler.ensemble, request):
        crowd.step()
    expected = sampler.trace(num=4, steps=5, strategy="full", solver="heun").shares
    torch.testing.assert_close(crowd.shares(range(4)), expected, atol=1e-5, rtol=0)


def test_a_preview_ends_as_the_sample(sampler):
    crowd: Rows[str] = Rows(sampler.ensemble)
    joined(crowd, sampler, "mine", sampler.request(num=2, steps=3))
    for _ in range(3):
        stepped = crowd.step()
    torch.testing.assert_close(stepped.x_0([0, 1]), crowd.x([0, 1]), atol=1e-4, rtol=1e-5)


def test_few_steps_of_a_flow_map(sampler):
    """A network that is told where its step ends is told so row by row."""

    class Map(torch.nn.Module):
        def forward(self, x_t, t, condition=None, r=None):
            return x_t * (t - r).view(-1, 1, 1, 1)

    ensemble = type(sampler.ensemble)(
        **{**vars(sampler.ensemble), "experts": [Map()], "router": None, "maps": True}
    )
    crowd: Rows[str] = Rows(ensemble)
    for owner, steps in (("a", 2), ("b", 5)):
        crowd.join(started(ensemble, owner, sampler.request(num=1, steps=steps), "ancestral", [0]))
    noise = crowd.x([0]).clone()
    torch.testing.assert_close(drawn(crowd, "a"), noise * (1 - 0.25) ** 2)
    torch.testing.assert_close(drawn(crowd, "b"), noise * (1 - 0.04) ** 5)


def test_prompts_of_any_length_share_a_batch(tmp_path):
    from tests.serving import text_encoder

    run = served(tmp_path / "run", "text", text_encoder(tmp_path / "encoder"))
    sampler = opening.open_run_model(run)
    crowd: Rows[str] = Rows(sampler.ensemble)
    joined(crowd, sampler, "long", sampler.request(num=1, prompt="red green apple cat", steps=2))
    joined(crowd, sampler, "mine", sampler.request(num=2, prompt=["cat", "red apple"], steps=5))
    expected = sampler.sample(num=2, prompt=["cat", "red apple"], steps=5)
    assert close(drawn(crowd, "mine"), expected)
    assert not crowd.rows


def test_what_the_machine_grants_is_read_when_rows_join_and_not_at_every_step(sampler, monkeypatch):
    readings = []

    def granted():
        readings.append(1)
        return 1

    monkeypatch.setattr(threads, "granted", granted)
    crowd: Rows[str] = Rows(sampler.ensemble)
    joined(crowd, sampler, "mine", sampler.request(num=2, strategy="ancestral", steps=6))
    for _ in range(3):
        crowd.step()
    assert len(readings) == 1
    joined(crowd, sampler, "other", sampler.request(num=1, strategy="ancestral", steps=6))
    crowd.step()
    crowd.step()
    assert len(readings) == 2
