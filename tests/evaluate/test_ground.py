"""The base: the common beginning of all experts, or two moments."""

import torch

from atoll import config
from atoll.credit.target import gaussian_velocity
from atoll.evaluate import ground
from atoll.models import checkpoint
from atoll.runs import Run, inputs
from atoll.sampling import building
from atoll.train import jobs

CPU = torch.device("cpu")


def test_a_run_with_a_start_is_measured_against_it(prepared):
    run = prepared("start.steps=4", "start.batch=8")
    jobs.start(run)
    base = ground.ground(run, CPU, torch.zeros(2, 1, 28, 28))
    assert (base.name, base.network) == ("start", True)
    assert inputs.beginning(run, 0).path == run.start.path
    audited = ground.ground(run, CPU, torch.zeros(2, 1, 28, 28), run.config.credit.audit_base)
    assert (audited.name, audited.network) == (ground.SPREAD, False), "where the budget of audits is enough"
    x_t, t = torch.randn(3, 1, 28, 28), torch.tensor([0.1, 0.5, 0.9])
    network, _ = checkpoint.load(run.start.path / checkpoint.WEIGHTS, run.start.path / checkpoint.CONFIG)
    assert torch.allclose(base.velocity(x_t, t, None), network(x_t, t, None))


def test_an_expert_that_all_began_with_is_the_base(finished):
    origin = str(finished.expert(1).path)
    tree = finished.config.model_dump(mode="json")
    tree["expert"]["init"] = origin
    base = ground.ground(Run(finished.path, config.validate(tree, "a test")), CPU, torch.zeros(2, 1, 28, 28))
    assert base.name == "expert.init"
    x_t, t = torch.randn(2, 1, 28, 28), torch.tensor([0.2, 0.7])
    again = building.lone(finished.expert(1), CPU).experts[0](x_t, t, None)
    assert torch.equal(base.velocity(x_t, t, None), again)


def test_without_a_common_beginning_it_is_two_moments_of_the_samples(finished):
    x_0 = torch.randn(500, 1, 28, 28) * 0.3 + 0.1
    base = ground.ground(finished, CPU, x_0)
    assert (base.name, base.network) == (ground.SPREAD, False)
    x_t, t = torch.randn(2, 1, 28, 28), torch.tensor([0.2, 0.7])
    expected = gaussian_velocity(x_t, t, x_0.mean(0), x_0.var(0, correction=0))
    assert torch.allclose(base.velocity(x_t, t, None), expected, atol=1e-5)
