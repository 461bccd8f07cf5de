import pytest
import torch

from atoll.errors import DataError
from atoll.flow import path
from atoll.models import checkpoint
from atoll.train import jobs, prototypes

SETTINGS = ("router.prototypes=4", "router.steps=1", "router.precision='float32'")


def right(router, run, t):
    """How often a router names the cluster of a noisy sample that made no prototype."""
    hits, count = 0, 0
    for k in range(run.config.partition.clusters):
        x_0 = prototypes.second_half(run.cluster(k)).x_0
        noise = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(k))
        times = torch.full((len(x_0),), t)
        hits += int((router(path.point(x_0, noise, times), times).argmax(1) == k).sum())
        count += len(x_0)
    return hits / count


def test_a_router_that_has_learnt_nothing_knows_the_clusters(prepared):
    run = prepared(*SETTINGS, name="known")
    stage = jobs.router(run)
    router, blueprint = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    assert 3 < blueprint.prototypes <= 12
    assert right(router, run, 0.3) > 0.8
    assert right(router, run, 0.3) > right(router, run, 0.97)
    assert jobs.router(run).digest == stage.digest  # a second call finds it done


def test_temperatures_make_it_less_sure_near_the_data(prepared):
    run = prepared(*SETTINGS, name="known")
    clusters = [run.cluster(k) for k in range(3)]
    module = prototypes.of_clusters(clusters, run.partition.contents.priors, 0, 4, seed=0)
    assert float(module.betas[0]) < 0.5
    assert float(module.betas[0]) < float(module.betas[5])


def test_too_few_samples_are_refused():
    with pytest.raises(DataError, match="1 different samples are too few for router rows; give 16 or more"):
        prototypes.of_samples(torch.zeros(40, 1, 2), None, 0, 4)
