"""What a distance loses without a part, of a tiny run, from end to end."""

import json
from types import SimpleNamespace

import pytest
import torch

from atoll.credit import mixtures
from atoll.credit.mixtures import Moments
from atoll.errors import ConfigError
from atoll.evaluate import alone, credit, evaluation, lost
from atoll.evaluate.distances import Frechet
from atoll.evaluate.measure import Judge
from atoll.pages import credit as pages
from atoll.runs import CREDIT
from atoll.sampling.opening import open_run_model

QUICK = ["credit.drawn=16", "sample.steps=2", "evaluate.features=['pixels']", "evaluate.reference=200"]


@pytest.fixture
def run(finished):
    return finished.changed(QUICK)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(lost, "GROUPS", 2)
    monkeypatch.setattr(lost, "MANY", 10**6)


def test_it_is_the_arithmetic_on_samples_of_each_part(run):
    record = lost.measure(run)
    assert record == json.loads(json.dumps(record)) and lost.kept(run)["spaces"] == record["spaces"]
    space = Judge(run, run.config.evaluate).spaces[0]
    sampler, to = open_run_model(run), Frechet(space.reference)
    rows = torch.stack(
        [space.of(alone.drawn(run, sampler, k, 16, lost.seed_of(run, k)).x_0) for k in range(3)]
    )
    priors, told = sampler.ensemble.priors, record["spaces"]["pixels"]
    half = [torch.arange(start, 16, 2) for start in (1, 0)]

    def corrected(statistic):
        some = [statistic(Moments.of(rows[:, each])) for each in half]
        return 2 * statistic(Moments.of(rows)) - sum(some) / 2

    expected = corrected(lambda parts: mixtures.left_out(to.of_moments, parts, priors))
    assert [part["lost"]["value"] for part in told["parts"]] == pytest.approx(expected.tolist(), rel=1e-6)
    total = told["nothing"] - told["distance"]["value"]
    assert sum(part["value"]["value"] for part in told["parts"]) == pytest.approx(total, rel=1e-6)
    assert sum(part["share"] for part in told["parts"]) == pytest.approx(1)
    text = lost.table(record)
    assert len(text.splitlines()) == 1 + 3 + 1 + 1 and "not for payment" in text
    page = pages.write_distance(run, record).read_text()
    assert "expert 2" in page and "not for payment" in page


def test_another_epoch_draws_other_samples_and_many_features_have_no_intervals_of_values(run, monkeypatch):
    monkeypatch.setattr(lost, "MANY", 1)
    record = lost.measure(run)
    assert all(part["value"]["low"] is None for part in record["spaces"]["pixels"]["parts"])
    assert all(part["lost"]["low"] is not None for part in record["spaces"]["pixels"]["parts"])
    assert lost.seed_of(run, 0) != lost.seed_of(run.changed(["credit.epoch=1"]), 0) != lost.seed_of(run, 1)


def space_of(reference):
    return SimpleNamespace(reference=reference, distance_name="Fréchet distance, made")


def test_who_draws_nothing_like_the_data_makes_the_distance_larger(run):
    """Three parts of known places: two that are the data's, and one that is nowhere near them."""
    source = torch.Generator().manual_seed(2)
    places = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    rows = torch.randn(3, 400, 2, generator=source) * 0.5 + places[:, None]
    data = torch.randn(2000, 2, generator=source) * 0.5 + places[torch.arange(2000) % 2]
    priors = torch.tensor([0.4, 0.4, 0.2])
    told = lost.told(run, space_of(data), rows, priors, [0, 1, 2])
    changes = [part["lost"] for part in told["parts"]]
    assert changes[2]["high"] < 0 < min(changes[0]["low"], changes[1]["low"])
    assert told["nothing"] == pytest.approx(float(data.double().T.cov().trace()))
    left = Frechet(data)(torch.cat([rows[0], rows[1]]))
    gone = changes[2]["value"] + told["distance"]["value"]
    assert gone == pytest.approx(left, abs=0.05), "what is left of them is the data's, near enough"
    assert [part["share"] for part in told["parts"]] == pytest.approx([0.4, 0.4, 0.2])
    few = lost.told(run, space_of(data), rows[:, :50], priors, [0, 1, 2])["parts"][2]["lost"]
    assert few["high"] - few["low"] > 1.3 * (changes[2]["high"] - changes[2]["low"])


def test_it_is_only_of_the_same_networks(run, monkeypatch):
    assert lost.kept(run) is None
    counted = []
    record = lost.measure(run, lambda *count: counted.append(count))
    assert counted == [(16, 48), (32, 48), (48, 48)]
    assert lost.kept(run)["drawn"] == record["drawn"] == 16
    assert record["steps"] == 2 and record["numbers"] == [0, 1, 2]
    monkeypatch.setattr(evaluation, "networks", lambda _: "others")
    assert lost.kept(run) is None


def test_the_page_of_values_tells_it_beside_them(run):
    """Whichever is measured first."""
    record = lost.measure(run)
    values = credit.value(run.changed(["credit.num=32", "credit.traced=0"]))
    page = pages.write_credit(run, values)
    assert "What a distance would lose" in page.read_text()
    page.write_text("")
    pages.write_distance(run, record)
    assert "What a distance would lose" in page.read_text()
    (run.path / CREDIT).with_name(lost.FILE).unlink()
    assert "What a distance would lose" not in pages.write_credit(run, values).read_text()


def test_without_data_there_is_one_clear_line(run, monkeypatch):
    monkeypatch.setattr(type(run.data), "done", property(lambda stage: False))
    with pytest.raises(ConfigError, match="compares with the run's own data"):
        lost.measure(run)
