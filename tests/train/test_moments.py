"""What is measured of experts that predict noise, and what is asked of them with it."""

import pytest
import torch

import atoll
from atoll.data.store import Reader
from atoll.errors import RunError
from atoll.flow import gaussian, shrinkage
from atoll.models import checkpoint, shrunk
from atoll.models.expert import as_expert
from atoll.publish import export
from atoll.runs import graph
from atoll.sampling.opening import open_run_model
from atoll.train import moments

MIXED = 'expert.override=[{clusters=[1], path="cosine", prediction="noise"}]'
PLAIN = ["expert.precision='float32'", "sample.precision='float32'", "sample.steps=2", "sample.num=4"]


@pytest.fixture
def mixed(prepared):
    run = prepared(MIXED, "expert.steps=3", "router.steps=1", *PLAIN)
    for node in graph.nodes(run):
        if node.kind.network:
            node.make()
    return run


def noisy(shape):
    source = torch.Generator().manual_seed(0)
    return torch.randn(4, *shape, generator=source), torch.tensor([0.1, 0.5, 0.9, 0.999])


def alone(stage):
    network, about = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    return as_expert(network, about.objective)


@torch.inference_mode()
def test_only_a_noise_prediction_is_measured_and_shrunk_by_that(mixed):
    assert [shrunk.FILE in mixed.expert(k).record.files for k in range(3)] == [False, True, False]
    kept = checkpoint.read_tensors(mixed.expert(1).path / shrunk.FILE)
    samples = Reader([mixed.cluster(1)], 1, mixed.config.seed).first(moments.MOMENTS).x_0
    torch.testing.assert_close(kept["mean"], samples.mean(0), rtol=1e-4, atol=1e-4)
    assert 0 <= kept["shares"].min() and kept["shares"].max() <= 1
    assert kept["shares"][-1] < 0.5, "three steps teach nobody what noise says of a velocity at t = 0.99"
    x_t, t = noisy(samples.shape[1:])
    known = gaussian.Gaussian(*(kept[name] for name in gaussian.Gaussian._fields))
    base, own = gaussian.velocity(known, x_t, t), alone(mixed.expert(1))(x_t, t)
    left = shrinkage.between(t, kept["times"], kept["shares"]).view(-1, 1, 1, 1)
    ensemble = open_run_model(mixed, "cpu").ensemble
    torch.testing.assert_close(ensemble.experts[1](x_t, t), base + left * (own - base))
    torch.testing.assert_close(ensemble.experts[0](x_t, t), alone(mixed.expert(0))(x_t, t))
    plain = open_run_model(mixed, "cpu", shrink=False).ensemble
    torch.testing.assert_close(plain.experts[1](x_t, t), own)


def test_it_goes_along_when_experts_are_exported(mixed, tmp_path):
    export.export(mixed, str(tmp_path / "out"))
    before, after = (atoll.load(path).sample(4) for path in (mixed.path, tmp_path / "out"))
    assert torch.equal(before, after)
    assert not torch.equal(before, atoll.load(mixed.path, shrink=False).sample(4))


def test_what_is_damaged_is_refused(mixed):
    file = mixed.expert(1).path / shrunk.FILE
    tensors = checkpoint.read_tensors(file)
    checkpoint.write_tensors(file, {**tensors, "mean": tensors["mean"] + 1})
    with pytest.raises(RunError, match=shrunk.FILE):
        open_run_model(mixed, "cpu").sample(2)
