"""Likelihoods made fair by samples whose cluster is known: once, kept, and only of the same networks."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from atoll.credit import likelihood
from atoll.data import holdout
from atoll.evaluate import calibration, credit
from atoll.runs import CREDIT, Stage, read_stamped
from atoll.sampling import makers
from atoll.sampling.opening import open_run_model

QUICK = ["credit.num=96", "credit.levels=4", "credit.nearest=1", "credit.calibration=3"]


@pytest.fixture
def run(finished):
    return finished.changed(QUICK)


@pytest.fixture
def ensemble(run):
    return open_run_model(run, precision="float32", model="ensemble", experts=None).ensemble


def test_it_is_what_the_arithmetic_says_of_the_parts_own_samples(run, ensemble):
    known = calibration.samples(run, ensemble)
    assert [one.number for one in known] == [0, 1, 2]
    assert all(len(one.batch.x_0) == 3 and not one.unseen for one in known)
    assert all((one.batch.cluster == one.number).all() for one in known)
    rows = [makers.makers(ensemble, one.batch.x_0, levels=4, batch=7).nll for one in known]
    expected = likelihood.calibrated(torch.cat(rows), torch.arange(3).repeat_interleave(3))
    found = calibration.fair(run, ensemble)
    assert torch.allclose(found.offsets, expected.offsets, rtol=1e-3, atol=1e-3)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-3)


def test_it_is_fitted_once_and_of_other_networks_or_levels_again(run, ensemble, monkeypatch):
    found = calibration.fair(run, ensemble)
    monkeypatch.setattr(makers, "makers", lambda *_, **__: pytest.fail("fitted already"))
    again = calibration.fair(run, ensemble)
    assert torch.equal(again.offsets, found.offsets) and again.temperature == found.temperature
    assert calibration.kept(run.changed(["credit.levels=5"])) is None
    assert calibration.kept(run, most=4) is None and calibration.kept(run, most=3) is not None
    assert calibration.kept(run, conditional=True) is None
    path = (run.path / CREDIT).with_name(calibration.FILE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "networks": "others"}))
    assert calibration.kept(run) is None


def test_traces_say_whether_they_are_fair(run, ensemble):
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


def test_without_data_nothing_is_fitted(run, ensemble, monkeypatch):
    monkeypatch.setattr(Stage, "here", property(lambda stage: False))
    assert calibration.samples(run, ensemble) == []
    assert calibration.fair(run, ensemble) is None


def stand_in(parts, absent=()):
    """All that choosing samples asks of an ensemble."""
    return SimpleNamespace(experts=[None] * parts, absent=frozenset(absent))


def test_samples_that_nobody_trained_on_come_first_and_parts_that_are_gone_have_none(grown):
    run, private = grown(0.1)
    run = run.changed(["credit.calibration=5"])
    known = calibration.samples(run, stand_in(4, absent=[1]))
    assert [one.number for one in known] == [0, 2, 3]
    assert all(one.unseen and len(one.batch.x_0) == 5 for one in known)
    held = holdout.read([private.cluster(0)], 5)
    assert torch.equal(known[2].batch.x_0, held.x_0), "of the part that the run has grown by here"


def test_of_a_part_whose_data_are_elsewhere_there_are_none(grown):
    run, _ = grown(0, made_here=False)
    known = calibration.samples(run.changed(["credit.calibration=2"]), stand_in(4))
    assert [(one.number, len(one.batch.x_0), one.unseen) for one in known] == [
        (0, 2, False),
        (1, 2, False),
        (2, 2, False),
    ]


def test_no_more_samples_are_taken_than_there_are(run):
    every = run.changed(["credit.calibration=100000"])
    known = calibration.samples(every, stand_in(3))
    assert [len(one.batch.x_0) for one in known] == list(run.partition.contents.sizes)


class Worse(torch.nn.Module):
    """An expert that errs by as much everywhere."""

    def __init__(self, expert, by):
        super().__init__()
        self.expert, self.by = expert, by

    def forward(self, x_t, t, condition=None):
        return self.expert(x_t, t, condition) + self.by


def test_an_expert_that_errs_everywhere_is_the_maker_of_its_own_again(run, ensemble):
    """An expert that became worse is named about as often as before, where plain likelihoods never do."""
    parts = [Worse(ensemble.experts[k], 0.7 * (k == 1)) for k in range(3)]
    worse = replace(ensemble, experts=parts)
    own = run.changed(["credit.calibration=12"])
    x_0 = torch.cat([one.batch.x_0[:6] for one in calibration.samples(own, ensemble)])
    asked = {"levels": 4, "batch": 64}
    assert not (makers.makers(worse, x_0, **asked).posterior.argmax(1) == 1).any()
    before = makers.makers(ensemble, x_0, **asked, calibration=calibration.fair(own, ensemble))
    (run.path / CREDIT).with_name(calibration.FILE).unlink()
    fair = calibration.fair(own, worse)
    assert float(fair.offsets.argmax()) == 1
    after = makers.makers(worse, x_0, **asked, calibration=fair)
    usual, named = (one.posterior.argmax(1) for one in (before, after))
    assert after.calibrated and int((named == 1).sum()) >= int((usual == 1).sum()) / 2 > 0


def test_what_experts_are_told_is_calibrated_apart(run, ensemble, monkeypatch):
    """Both are kept in one file, and samples that are told nothing take nothing from the other."""
    told = []

    def seen(*_, condition=None, **__):
        told.append(condition)
        nll = torch.rand(3, 3, generator=torch.Generator().manual_seed(len(told)))
        return SimpleNamespace(nll=nll.double())

    monkeypatch.setattr(makers, "makers", seen)
    monkeypatch.setattr(calibration, "condition_of", lambda _, batch: batch.cluster)
    counted = []
    plain = calibration.fair(run, ensemble, progress=lambda *count: counted.append(count))
    assert counted == [(1, 3), (2, 3), (3, 3)] and told == [None] * 3
    other = calibration.fair(run, ensemble, conditional=True)
    assert [int(one[0]) for one in told[3:]] == [0, 1, 2]
    assert calibration.kept(run).offsets.tolist() == plain.offsets.tolist()
    assert calibration.kept(run, conditional=True).offsets.tolist() == other.offsets.tolist()
    record = read_stamped((run.path / CREDIT).with_name(calibration.FILE))
    assert (record["untold"]["known"], record["told"]["unseen"]) == (9, False)
    calibration.fair(run.changed(["credit.levels=6"]), ensemble)
    assert calibration.kept(run, conditional=True) is None, "of other noise levels"
