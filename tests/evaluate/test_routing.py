"""Router and experts by time, on numbers worked out by hand and on an ensemble that is exact."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.data.store import Batch
from atoll.evaluate import routing
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.opening import open_model
from tests.analytic import ExactExpert, ExactRouter, grouped


def test_a_router_by_hand():
    posterior = torch.tensor([[0.85, 0.15], [0.65, 0.35], [0.25, 0.75], [0.0, 1.0]])
    found = routing.router_facts(posterior, torch.tensor([0, 1, 1, 1]))
    assert found["accuracy"] == pytest.approx(3 / 4)
    # each row is alone in its bin of confidence: |1 - 0.85|, |0 - 0.65|, |1 - 0.75| and |1 - 1|
    assert found["calibration"] == pytest.approx((0.15 + 0.65 + 0.25 + 0) / 4)
    bits = [-(p * math.log2(p) + (1 - p) * math.log2(1 - p)) for p in (0.85, 0.65, 0.75)]
    assert found["entropy"] == pytest.approx(sum(bits) / 4)
    assert found["cross_entropy"] == pytest.approx(-math.log(0.85 * 0.35 * 0.75 * 1.0) / 4)


def test_what_each_cluster_is_given():
    posterior = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0]])
    found = routing.router_facts(posterior, torch.tensor([0, 0, 1]))["own_probability"]
    assert found[:2] == pytest.approx([0.7, 0.7])
    assert found[2] is None


def test_confident_and_right_half_of_the_time_is_badly_calibrated():
    found = routing.router_facts(torch.tensor([[0.99, 0.01]] * 10), torch.tensor([0, 1] * 5))
    assert found["calibration"] == pytest.approx(0.49)
    even = routing.router_facts(torch.tensor([[0.5, 0.5]] * 10), torch.tensor([0, 1] * 5))
    assert even["calibration"] == pytest.approx(0)
    assert even["entropy"] == pytest.approx(1)


def test_experts_by_hand():
    # columns: expert 0, expert 1, full, top-1, top-2
    errors = torch.tensor([[1.0, 3.0, 1.5, 2.0, 1.5], [5.0, 2.0, 2.5, 2.0, 2.5], [1.0, 7.0, 1.0, 1.0, 1.0]])
    found = routing.expert_facts(errors, torch.tensor([0, 1, 0]), 2)
    assert found["own"] == pytest.approx((1 + 2 + 1) / 3)
    assert found["others"] == pytest.approx((3 + 5 + 7) / 3)
    assert found["greedy"] == pytest.approx((2 + 2 + 1) / 3 - (1.5 + 2.5 + 1) / 3)
    assert found["table"] == [[1.0, 5.0], [5.0, 2.0]]


def test_an_exact_ensemble_is_calibrated_and_its_mixture_the_best_there_is():
    """Of all functions of x_t the whole mixture of exact experts has the least loss (it is the mean)."""
    data = grouped(3, [40, 30, 30], 4, 0.3)
    points = data.points.view(-1, 1, 4)
    shaped = type(data)(points, data.cluster, data.clusters)
    ensemble = Ensemble(
        experts=[ExactExpert(shaped, k) for k in range(3)],
        priors=shaped.priors.float(),
        shape=(1, 4),
        router=ExactRouter(shaped),
    )
    source = torch.Generator().manual_seed(0)
    rows = torch.randint(100, (6000,), generator=source)
    x_0, noise = points[rows].float(), torch.randn(6000, 1, 4, generator=source)
    batch = Batch(x_0, None, data.cluster[rows])
    for t in (0.5, 0.9):
        found = routing._at(ensemble, batch, noise, t, True)
        assert found["calibration"] < 0.04
        assert found["full"] <= min(found["top-1"], found["others"])
        assert found["greedy"] > 0
        assert found["own"] < found["others"]
    early, late = (routing._at(ensemble, batch, noise, t, False)["entropy"] for t in (0.3, 0.95))
    assert early < late


@pytest.mark.parametrize("seed", [0, 1])
def test_correlation_is_spearmans(seed):
    source = torch.Generator().manual_seed(seed)
    x = torch.randint(5, (30,), generator=source).double()
    y = (x + 2 * torch.randn(30, generator=source)).round()
    expected = stats.spearmanr(x.numpy(), y.numpy()).statistic
    assert routing.correlation(x.tolist(), y.tolist()) == pytest.approx(expected, rel=1e-9)
    assert routing.correlation([1, 1, 1], [1, 2, 3]) is None


def test_a_run_is_examined_at_every_time(finished):
    ensemble = open_model(finished.path).ensemble
    found = routing.examine(ensemble, finished, 30)
    assert [row["t"] for row in found["times"]] == pytest.approx([0.05 + 0.1 * i for i in range(10)])
    for row in found["times"]:
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["entropy"] <= 1 + 1e-9
        assert len(row["table"]) == 3
    assert routing.examine(ensemble, finished, 30) == found
    assert "intervals" not in found["times"][0]


def test_intervals_are_those_of_a_mean(finished):
    """Each as wide as the standard error of the rows behind it, which for a share is known."""
    rows = routing.examine(open_model(finished.path).ensemble, finished, 200, resamples=300)["times"]
    names = {"accuracy", "entropy", "cross_entropy", "calibration", "own", "others", "full", "top-1", "top-2"}
    for row in rows:
        assert set(row["intervals"]) == names | {"greedy", "disagreement"}
        low, high = row["intervals"]["accuracy"]
        error = math.sqrt(row["accuracy"] * (1 - row["accuracy"]) / 200)
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)
        for name, (low, high) in row["intervals"].items():
            assert low <= row[name] <= high, name
    router_alone = routing.examine(
        open_model(finished.path).ensemble, finished, 50, experts=False, resamples=5
    )
    assert "own" not in router_alone["times"][0]["intervals"]


def test_what_entropy_predicts_has_an_interval():
    source = torch.Generator().manual_seed(0)
    x = torch.rand(60, generator=source)
    y = x + 0.5 * torch.rand(60, generator=source)
    times = [{"entropy": float(a), "greedy": float(b)} for a, b in zip(x, y, strict=True)]
    found = routing.predicts([{"times": times[:30]}, {"times": times[30:]}])
    assert found.value == pytest.approx(stats.spearmanr(x.numpy(), y.numpy()).statistic, rel=1e-9)
    assert found.num == 60
    # Fisher's transformation gives about (1 - rho²) / sqrt(n) for the standard error
    error = (1 - found.value**2) / math.sqrt(60)
    assert found.high - found.value == pytest.approx(1.96 * error, rel=0.5)
    assert found.low < found.value < found.high <= 1
    assert routing.predicts([{"times": times[:1]}]) is None


@pytest.mark.parametrize("clusters", [2, 5])
def test_calibration_agrees_with_torchmetrics(clusters):
    source = torch.Generator().manual_seed(clusters)
    posterior = torch.randn(500, clusters, generator=source).softmax(1)
    cluster = torch.randint(clusters, (500,), generator=source)
    from torchmetrics.functional.classification import multiclass_calibration_error

    theirs = multiclass_calibration_error(posterior, cluster, clusters, n_bins=10, norm="l1")
    assert routing.calibration(posterior, cluster) == pytest.approx(float(theirs), abs=1e-4)
    assert float(theirs) > 0.05


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_ranks_are_scipys(values):
    ranks = routing._ranks(torch.tensor(values, dtype=torch.float64))
    assert ranks.tolist() == [rank - 1 for rank in stats.rankdata(values)]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=12))
def test_correlation_sees_the_order_alone(pairs):
    x, y = zip(*pairs, strict=True)
    found = routing.correlation(x, y)
    if found is None:
        assert len(set(x)) == 1 or len(set(y)) == 1
        return
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    assert routing.correlation([math.exp(v / 3) for v in x], y) == pytest.approx(found)
    assert routing.correlation([-v for v in x], y) == pytest.approx(-found)


def test_losses_of_each_expert_and_of_mixtures_by_hand():
    """Two samples of two values; experts say 0 and 2, and 1 is right."""
    v = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[2.0, 2.0], [2.0, 2.0]]]).unsqueeze(2)
    posterior = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    errors = routing._errors(v, posterior, torch.ones(2, 1, 2))
    assert errors.shape == (2, 5)
    assert errors[:, :2].tolist() == [[1, 1], [1, 1]]
    assert errors[:, 2].tolist() == pytest.approx([0, 0.25])  # the mean of both is 1, then 1.5
    assert errors[1, 3].item() == pytest.approx(1)  # top-1 takes the second alone
    assert errors[:, 4].tolist() == pytest.approx(errors[:, 2].tolist())  # two of two are all


def test_one_expert_has_no_others():
    found = routing.expert_facts(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.tensor([0]), 1)
    assert found["others"] is None
    assert found["own"] == 1
    assert found["greedy"] == 0


def test_a_cluster_without_samples_leaves_its_column_open():
    errors = torch.tensor([[1.0, 3.0, 2.0, 1.0, 2.0]])
    assert routing.expert_facts(errors, torch.tensor([0]), 2)["table"] == [[1.0, None], [3.0, None]]


@given(st.integers(2, 6), st.integers(0, 100))
def test_entropy_is_a_share_of_the_largest(clusters, seed):
    posterior = torch.randn(8, clusters, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(1)
    expected = stats.entropy(posterior.double().numpy(), axis=1, base=clusters)
    assert routing._entropies(posterior).tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert routing._entropies(torch.eye(clusters)).tolist() == [0] * clusters


def test_examinations_without_experts_predict_nothing():
    assert routing.predicts([{"times": [{"entropy": 0.1 * i} for i in range(9)]}]) is None


def test_of_few_samples_each_is_taken_once(prepared):
    run = prepared()
    batch = routing._drawn(run, 10**6)
    rows = sum(run.cluster(index).contents.rows for index in range(3))
    assert len(batch.x_0) == rows
    assert torch.bincount(batch.cluster).tolist() == [run.cluster(k).contents.rows for k in range(3)]
