"""Likelihoods made fair by samples whose maker is known: once, kept, and only of the same networks."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from atoll.credit import likelihood
from atoll.evaluate import alone, calibration, credit
from atoll.runs import CREDIT, Stage, read_stamped
from atoll.sampling import makers
from atoll.sampling.opening import open_run_model

QUICK = ["credit.num=96", "credit.levels=4", "credit.nearest=1", "credit.calibration=3"]


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(calibration, "STEPS", 2)


@pytest.fixture
def run(finished):
    return finished.changed(QUICK)


@pytest.fixture
def sampler(run):
    return open_run_model(run, precision="float32", model="ensemble", experts=None)


def drawn(run, sampler, num=3):
    """What every part draws to be known by."""
    settings = {"solver": "dpm++", "steps": 2}
    seeds = [calibration.seed_of(run, k) for k in range(3)]
    return [alone.drawn(run, sampler, k, num, seed, **settings).x_0 for k, seed in enumerate(seeds)]


def test_it_is_what_the_arithmetic_says_of_samples_that_the_parts_drew(run, sampler):
    known = drawn(run, sampler)
    rows = [makers.makers(sampler.ensemble, x_0, levels=4, batch=7).nll for x_0 in known]
    expected = likelihood.calibrated(torch.cat(rows), torch.arange(3).repeat_interleave(3))
    found = calibration.fair(run, sampler)
    assert torch.allclose(found.offsets, expected.offsets, rtol=1e-3, atol=1e-3)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-3)
    assert len({calibration.seed_of(run, k) for k in range(3)}) == 3


def test_it_is_fitted_once_and_of_other_networks_or_levels_again(run, sampler, monkeypatch):
    found = calibration.fair(run, sampler)
    monkeypatch.setattr(makers, "makers", lambda *_, **__: pytest.fail("fitted already"))
    again = calibration.fair(run, sampler)
    assert torch.equal(again.offsets, found.offsets) and again.temperature == found.temperature
    assert calibration.kept(run.changed(["credit.levels=5"])) is None
    assert calibration.kept(run, most=4) is None and calibration.kept(run, most=3) is not None
    assert calibration.kept(run, conditional=True) is None
    path = (run.path / CREDIT).with_name(calibration.FILE)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "networks": "others"}))
    assert calibration.kept(run) is None
    del record["untold"]["drawn"]
    path.write_text(json.dumps(record))
    assert calibration.kept(run) is None, "of real samples, as they once were"


def test_traces_say_whether_they_are_fair(run, sampler):
    ensemble = sampler.ensemble
    x_0 = torch.zeros(1, *ensemble.shape)
    plain = makers.makers(ensemble, x_0, levels=4, batch=128)
    unfair = credit.trace(run.changed(["credit.calibration=0"]), x_0)[0]
    assert not unfair["calibrated"] and "as experts say them" in unfair["sentence"]
    assert unfair["posterior"] == pytest.approx(plain.posterior[0].tolist(), abs=1e-4)
    one = credit.trace(run, x_0)[0]
    found = calibration.kept(run)
    expected = likelihood.posterior(found.applied(plain.nll), ensemble.priors, found.temperature)
    assert one["calibrated"] and one["sentence"] == makers.SENTENCE
    assert one["posterior"] == pytest.approx(expected[0].tolist(), abs=1e-4)


def test_it_needs_no_data(run, sampler, monkeypatch):
    found = calibration.fair(run, sampler)
    (run.path / CREDIT).with_name(calibration.FILE).unlink()
    monkeypatch.setattr(Stage, "here", property(lambda stage: False))
    assert torch.equal(calibration.fair(run, sampler).offsets, found.offsets)


def test_a_part_that_is_gone_draws_nothing_and_one_that_is_alone_made_everything(run, sampler):
    some = replace(sampler, ensemble=replace(sampler.ensemble, absent=frozenset([1])))
    found = calibration.fair(run, some)
    assert found.offsets[1] == 0 and found.offsets[0] == pytest.approx(-float(found.offsets[2])) != 0
    (run.path / CREDIT).with_name(calibration.FILE).unlink()
    lone = replace(sampler, ensemble=replace(sampler.ensemble, absent=frozenset([0, 1])))
    assert calibration.fair(run, lone) is None


class Worse(torch.nn.Module):
    """An expert that errs by as much everywhere."""

    def __init__(self, expert, by):
        super().__init__()
        self.expert, self.by = expert, by

    def forward(self, x_t, t, condition=None):
        return self.expert(x_t, t, condition) + self.by


def test_an_expert_that_errs_everywhere_is_the_maker_of_its_own_again(run, sampler, monkeypatch):
    """An expert that became worse is named about as often as before, where plain likelihoods never do."""
    own, ensemble = run.changed(["credit.calibration=12"]), sampler.ensemble
    parts = [Worse(ensemble.experts[k], 0.7 * (k == 1)) for k in range(3)]
    worse = replace(sampler, ensemble=replace(ensemble, experts=parts))
    known = drawn(own, sampler, 12)
    monkeypatch.setattr(alone, "drawn", lambda run, sampler, k, *_, **__: alone.Drawn(known[k], None))
    x_0, asked = torch.cat(drawn(own, sampler, 6)), {"levels": 4, "batch": 64}
    assert not (makers.makers(worse.ensemble, x_0, **asked).posterior.argmax(1) == 1).any()
    before = makers.makers(ensemble, x_0, **asked, calibration=calibration.fair(own, sampler))
    (run.path / CREDIT).with_name(calibration.FILE).unlink()
    fair = calibration.fair(own, worse)
    assert float(fair.offsets.argmax()) == 1
    after = makers.makers(worse.ensemble, x_0, **asked, calibration=fair)
    usual, named = (one.posterior.argmax(1) for one in (before, after))
    assert after.calibrated and int((named == 1).sum()) >= int((usual == 1).sum()) / 2 > 0


def test_what_experts_are_told_is_calibrated_apart(run, sampler, monkeypatch):
    """Both are kept in one file, and samples that are told nothing take nothing from the other."""
    told = []

    def seen(*_, condition=None, **__):
        told.append(condition)
        nll = torch.rand(3, 3, generator=torch.Generator().manual_seed(len(told)))
        return SimpleNamespace(nll=nll.double())

    monkeypatch.setattr(makers, "makers", seen)
    monkeypatch.setattr(alone, "drawn", lambda run, sampler, k, *_, **__: alone.Drawn(None, k))
    counted = []
    plain = calibration.fair(run, sampler, progress=lambda *count: counted.append(count))
    assert counted == [(1, 3), (2, 3), (3, 3)] and told == [None] * 3
    other = calibration.fair(run, sampler, conditional=True)
    assert told[3:] == [0, 1, 2]
    assert calibration.kept(run).offsets.tolist() == plain.offsets.tolist()
    assert calibration.kept(run, conditional=True).offsets.tolist() == other.offsets.tolist()
    record = read_stamped((run.path / CREDIT).with_name(calibration.FILE))
    assert (record["untold"]["drawn"], record["told"]["drawn"]) == (9, 9)
    calibration.fair(run.changed(["credit.levels=6"]), sampler)
    assert calibration.kept(run, conditional=True) is None, "of other noise levels"
