"""The paired gate on losses whose changes are known, and why it is paired."""

import math

import pytest
import torch

from atoll.net.verification import gate

ROWS = 200


def losses(changes: dict[int, float], noise: float = 0.05, seed: int = 0):
    """Losses around 1 with a spread of 0.5 between samples; of each cluster they change by so much."""
    source = torch.Generator().manual_seed(seed)
    cluster = torch.arange(ROWS * len(changes)) // ROWS
    before = 1 + 0.5 * torch.randn(len(cluster), generator=source)
    change = torch.tensor([changes[int(index)] for index in cluster])
    after = before + change + noise * torch.randn(len(cluster), generator=source)
    return before, after, cluster


def doubts(changes: dict[int, float], own: int = 0, **more) -> set[str]:
    before, after, cluster = losses(changes, **more)
    return set(gate.paired(before, after, cluster, own).doubts)


def test_numbers_by_hand():
    result = gate.paired(
        torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, 3.0]), torch.tensor([0, 0, 1]), 0
    )
    own = result.changes[0]
    assert (own.mean, own.loss, own.rows) == (0.75, 1.5, 2)
    assert own.error == pytest.approx(math.sqrt(2 * 0.25**2) / math.sqrt(2))
    assert result.changes[1].error == math.inf


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({0: -0.05, 1: 0.0, 2: 0.0}, set()),
        ({0: -0.05, 1: -0.06, 2: 0.02}, set()),  # a young network learns for all
        ({0: 0.005, 1: 0.0, 2: 0.0}, set()),  # less than one in a hundred
        ({0: 0.05, 1: 0.0, 2: 0.0}, {"worse"}),
        ({0: 0.0, 1: -0.05, 2: 0.0}, {"elsewhere"}),
        ({0: 0.05, 1: -0.05, 2: 0.0}, {"worse", "elsewhere"}),
    ],
)
def test_what_is_odd(changes, expected):
    assert doubts(changes) == expected


def test_pairs_see_what_means_do_not():
    """A rise by 0.03 is nine standard errors of pairs and less than one of two means."""
    before, after, cluster = losses({0: 0.03}, seed=3)
    change = gate.paired(before, after, cluster, 0).changes[0]
    unpaired = math.sqrt(before.var() / ROWS + after.var() / ROWS)
    assert change.worse
    assert -change.mean > 7 * change.error
    assert -change.mean < unpaired


def test_noise_is_no_doubt():
    """Losses that change for no reason: not one of two hundred segments is doubted."""
    assert [seed for seed in range(200) if doubts({0: 0.0, 1: 0.0, 2: 0.0}, seed=seed)] == []


def test_a_cluster_of_which_nothing_is_held_out_has_no_gate():
    before, after, cluster = losses({0: 0.0})
    with pytest.raises(ValueError, match="cluster 7"):
        gate.paired(before, after, cluster, 7)


def test_secret_rows_follow_from_the_beacon():
    rows = gate.secret_rows(b"a" * 32, 1000, 50)
    assert len(rows) == 50
    assert len(set(rows.tolist())) == 50
    assert torch.equal(rows, gate.secret_rows(b"a" * 32, 1000, 50))
    assert not torch.equal(rows, gate.secret_rows(b"b" * 32, 1000, 50))
    assert len(gate.secret_rows(b"a" * 32, 10, 50)) == 10


def test_both_networks_see_the_same_noise_and_times():
    from atoll.data.store import Batch

    seen = []

    class Network(torch.nn.Module):
        def forward(self, x):
            return x

    def loss(model, batch, drawn):
        assert not model.training
        seen.append((drawn.noise, drawn.t))
        return model(batch.x_0).flatten(1).mean(1)

    network = Network().train()
    batch = Batch(torch.ones(4, 1, 2, 2), None, torch.zeros(4, dtype=torch.int64))
    for value in (b"a" * 32, b"a" * 32, b"b" * 32):
        assert torch.equal(gate.losses(network, loss, batch, value), torch.ones(4))
    assert network.training
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[0][0], seen[2][0])
