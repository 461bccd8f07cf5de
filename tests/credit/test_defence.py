import torch

from atoll.credit import defence


def apart(experts: int = 3, batch: int = 60, seed: int = 0) -> torch.Tensor:
    return torch.randn(experts, batch, 4, generator=torch.Generator().manual_seed(seed))


def test_an_honest_expert_is_hardly_clipped_and_an_overshooting_one_is():
    honest, cluster = apart(), torch.arange(60) % 3
    greedy = honest.clone()
    greedy[1, cluster != 1] *= 10  # far from the base where others are at home
    clipped = defence.clip(greedy, cluster)
    limit = defence.CLIP * greedy[1, cluster == 1].norm(dim=1).median()
    assert float(clipped[1].norm(dim=1).max()) <= float(limit) * (1 + 1e-5)
    assert float((defence.clip(honest, cluster) - honest).norm() / honest.norm()) < 0.1


def test_directions_stay():
    d = 100 * apart(1)
    d[0, 0] = 1000
    clipped = defence.clip(d, torch.zeros(60, dtype=torch.long))
    assert torch.allclose(
        torch.nn.functional.normalize(clipped, dim=2), torch.nn.functional.normalize(d, dim=2)
    )


def test_an_expert_whose_cluster_is_not_here_is_measured_by_the_others():
    d = apart()
    d[2] *= 50
    clipped = defence.clip(d, torch.arange(60) % 2)
    assert float(clipped[2].norm(dim=1).max()) < 3 * float(d[0].norm(dim=1).max())


def test_copies_are_found_however_they_are_scaled():
    d = apart()
    assert defence.copies(torch.cat([d, 0.3 * d[:1] + 1e-3 * apart(1, seed=5)])) == [(0, 3)]
    assert defence.copies(d) == []


def test_who_is_paid_more_than_missed_is_looked_at():
    values, without = torch.tensor([1.0, 1.0, -1.0, 0.1]), torch.tensor([1.1, 0.5, -2.0, -1.0])
    assert defence.alarms(values, without).tolist() == [False, True, False, True]
