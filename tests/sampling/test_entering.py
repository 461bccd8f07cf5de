"""Samples that enter where closed forms end: the same samples as from noise, with none of the steps there."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import atoll
from atoll.errors import ConfigError, RunError
from atoll.flow import gaussian
from atoll.models import entry
from atoll.publish import export
from atoll.runs import file_digest
from atoll.runs.records import StageRecord
from atoll.sampling import building, entering, parts
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.entering import Entering
from atoll.sampling.opening import entered_at
from atoll.sampling.parts import resolve
from atoll.sampling.rows import Rows, started
from atoll.sampling.sampler import Sampler
from tests.pretend_gpu import GPU, pretended_gpu
from tests.serving import same, served

TIMES = (0.5, 0.6, 0.7, 0.8, 0.9)


def moments(number, shape=(6,)):
    """Of clusters that lie apart and are wide in other directions."""
    source = torch.Generator().manual_seed(number)
    wide = torch.randn(50, *shape, generator=source) * torch.rand(shape, generator=source) * 2
    return gaussian.fitted(wide + 3 * number, 2)


class Closed(nn.Module):
    """The exact expert of samples that are Gaussian."""

    def __init__(self, known: entry.Entry) -> None:
        super().__init__()
        self.known = known

    def forward(self, x_t, t, condition=None):
        return gaussian.velocity(self.known.told(condition), x_t, t.to(x_t.dtype))


class Either(nn.Module):
    """A router that cannot tell."""

    def forward(self, x_t, t, condition=None):
        return torch.zeros(len(x_t), 2, device=x_t.device)


def kept(number, device="cpu", shape=(6,), shifts=None):
    """What an expert carries, its errors of no account."""
    known = gaussian.Gaussian(*(value.to(device) for value in moments(number, shape)))
    return entry.Entry(known, torch.tensor(TIMES), torch.zeros(2, len(TIMES)), shifts)


def sampler(t=0.6, device="cpu", shifts=None):
    """Of two clusters; with shifts each is of as many classes but one, told to exact experts."""
    known = [kept(k, device, shifts=shifts) for k in range(2)]
    ensemble = Ensemble(
        [Closed(each) for each in known],
        torch.tensor([0.4, 0.6]).to(device),
        (6,),
        Either(),
        classes=0 if shifts is None else len(shifts) - 1,
    )
    return Sampler(replace(ensemble, entry=Entering(t, dict(enumerate(known)))))


def test_exact_experts_make_the_same_samples_wherever_one_enters():
    """Each from noise in many steps is the limit; entering skips what needs none."""
    one = sampler()
    settings = {"strategy": "ancestral", "solver": "heun", "steps": 400}
    from_noise = one.sample(12, entry=1.0, **settings)
    for time in ("auto", 0.9, 0.3):
        entered = one.sample(12, entry=time, **settings)
        torch.testing.assert_close(entered, from_noise, atol=5e-3, rtol=0)


def test_each_enters_as_its_class_does():
    """As exact experts that are told a class have it flow; classes lie far apart."""
    shifts = torch.tensor([-10.0, 0.0, 10.0, 0.0])[:, None].expand(4, 6)
    one = sampler(shifts=shifts)
    settings = {"strategy": "ancestral", "solver": "heun", "steps": 400}
    from_noise = one.sample(12, entry=1.0, **settings)
    torch.testing.assert_close(one.sample(12, **settings), from_noise, atol=1e-2, rtol=0)
    assert (from_noise[2::3].mean(1) - from_noise[0::3].mean(1)).min() > 10
    rows: Rows[str] = Rows(one.ensemble, most=5)
    request = one.request(5, strategy="ancestral", solver="dpm++", steps=1)
    rows.join(started(one.ensemble, "one", request, resolve(one.ensemble, request)[0], range(5)))
    rows.step()
    alone = one.sample(5, strategy="ancestral", solver="dpm++", steps=1)
    torch.testing.assert_close(rows.x(range(5)), alone)


def test_few_steps_are_spent_where_networks_are_asked():
    one = sampler(0.6)
    assert one.trace(2, steps=3, strategy="ancestral").times == pytest.approx((0.6, 0.4, 0.2))
    assert one.trace(2, steps=3, strategy="ancestral", entry=1.0).times == pytest.approx((1, 2 / 3, 1 / 3))


def test_a_sample_that_keeps_no_expert_enters_as_the_cluster_that_it_would_be_drawn_from():
    one = sampler(0.7)
    full, drawn = (one.request(9, strategy=strategy) for strategy in ("full", "ancestral"))
    noise, owners = full.noise(range(9), (6,)), parts.experts(one.ensemble, drawn, range(9))
    found = parts.entered(one.ensemble, full, range(9), [None] * 9)
    for row, owner in enumerate(owners):
        alone = gaussian.flowed(moments(owner), noise[row : row + 1], torch.tensor([0.7]))
        torch.testing.assert_close(found[row : row + 1], alone)
    assert set(owners) == {0, 1}


@pytest.mark.parametrize("strategy", ["ancestral", "full", "top-1"])
def test_rows_of_many_requests_enter_as_a_request_alone_does(strategy):
    one = sampler(0.6)
    rows: Rows[str] = Rows(one.ensemble, most=4)
    for owner, settings in {"other": {"entry": 1.0, "steps": 7}, "mine": {"steps": 4}}.items():
        request = one.request(5, strategy=strategy, solver="dpm++", **settings)
        rows.join(started(one.ensemble, owner, request, resolve(one.ensemble, request)[0], range(5)))
    done: dict[tuple[str, int], torch.Tensor] = {}
    while len(done) < 10:
        rows.step()
        numbers = [number for number, row in enumerate(rows.rows) if row.done]
        for number, x in zip(numbers, rows.x(numbers), strict=True):
            done[rows.rows[number].owner, rows.rows[number].index] = x
        rows.leave(numbers)
    mine = torch.stack([done["mine", index] for index in range(5)])
    torch.testing.assert_close(mine, one.sample(5, strategy=strategy, solver="dpm++", steps=4))


def carried(stage, number, errors):
    """Put what is measured beside an expert."""
    own = entry.Entry(
        moments(number, (3, 8, 8)), torch.tensor(TIMES, dtype=torch.float64), torch.tensor(errors)
    )
    entry.write(stage.path / entry.FILE, own)
    files = {**stage.record.files, entry.FILE: file_digest(stage.path / entry.FILE)}
    stage.write(StageRecord.of({}, files, stage.contents))


OWN = [1.0] * 5
LATE, EARLY = [2.0, 2.0, 2.0, 2.0, 0.5], [3.0, 1.5, 0.5, 0.5, 0.5]


@pytest.fixture
def run(tmp_path):
    """Two experts; by their own figures one would be entered at 0.9 and the other at 0.7."""
    run = served(tmp_path / "run")
    carried(run.expert(0), 0, [OWN, LATE])
    carried(run.expert(1), 1, [OWN, EARLY])
    return run


@pytest.mark.parametrize(
    ("priors", "expected"), [((1.0, 0.0), 0.9), ((0.0, 1.0), 0.7), ((0.3, 0.7), 0.7), ((0.5, 0.5), 0.9)]
)
def test_where_to_enter_is_found_for_all_experts_together_by_their_shares(run, priors, expected):
    """0.3 of twice and 0.7 of half what the experts leave is less than they leave; 0.5 of both is more."""
    stages = [run.expert(0), run.expert(1)]
    found = entering.of_parts(stages, priors, frozenset(), torch.device("cpu"))
    assert found is not None
    assert found.t == expected


def test_who_is_not_asked_has_no_say(run):
    stages = [run.expert(0), run.expert(1)]
    assert entering.of_parts(stages, (0.5, 0.5), frozenset({0}), torch.device("cpu")).t == 0.7
    carried(run.expert(1), 1, [OWN, [2.0] * 5])
    assert entering.of_parts(stages, (0.5, 0.5), frozenset({0}), torch.device("cpu")).t == 1.0


def test_one_expert_without_moments_and_all_begin_with_noise(run, tmp_path):
    stages = [run.expert(0), served(tmp_path / "other").expert(1)]
    assert entering.of_parts(stages, (0.5, 0.5), frozenset(), torch.device("cpu")) is None


def test_a_run_says_where_its_samples_enter(run, tmp_path):
    opened = atoll.load(run.path)
    assert entered_at(run) == opened.trace(2).times[0] < 1
    assert entered_at(served(tmp_path / "other")) == 1


def test_who_takes_the_place_of_an_expert_brings_its_own_moments(run, tmp_path):
    opened, other = atoll.load(run.path), served(tmp_path / "other").expert(1)
    with pytest.raises(RunError, match="no moments of its samples"):
        building.swap(opened.ensemble, 0, other)
    carried(other, 5, [OWN, EARLY])
    building.swap(opened.ensemble, 0, other)
    assert torch.equal(opened.ensemble.entry.known[0].known.mean, moments(5, (3, 8, 8)).mean)


def test_moments_go_along_when_experts_are_exported(run, tmp_path):
    export.export(run, str(tmp_path / "out"))
    before, after = (atoll.load(path).sample(5) for path in (run.path, tmp_path / "out"))
    assert same(before, after)
    assert not same(before, atoll.load(run.path).sample(5, entry=1.0))


def test_damaged_moments_are_refused_before_anything_is_drawn(run):
    file = run.expert(1).path / entry.FILE
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(RunError, match=entry.FILE):
        atoll.load(run.path)


def test_nobody_enters_where_nothing_is_known(tmp_path):
    plain = atoll.load(served(tmp_path / "run").path)
    assert same(plain.sample(3), plain.sample(3, entry=1.0))
    with pytest.raises(ConfigError, match="expert.entry = true"):
        plain.sample(3, entry=0.7)


@pytest.mark.parametrize("strategy", ["ancestral", "full"])
def test_entering_makes_nobody_wait_on_a_gpu(strategy):
    def waits(steps):
        with pretended_gpu() as gpu:
            one = sampler(0.6, GPU)
            gpu.waits.clear()
            one.sample(6, strategy=strategy, steps=steps)
            return gpu.places()

    assert waits(6) == waits(3)
