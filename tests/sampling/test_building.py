import pytest
import torch

from atoll.errors import CorruptError, RunError
from atoll.runs import Stage
from atoll.sampling import building
from atoll.sampling.arithmetic import Arithmetic
from atoll.sampling.roster import Roster
from tests.serving import served

CPU = torch.device("cpu")


def test_experts_are_loaded_when_they_are_asked(tmp_path):
    run = served(tmp_path / "run", "class")
    parts = building.Parts([run.expert(0), run.expert(1)], [0.75, 0.25], run.router, [[12, 18, 0], [4, 0, 6]])
    ensemble = building.build(parts, CPU, resident=1)
    assert isinstance(ensemble.experts, Roster)
    assert ensemble.experts.loads == 0
    assert (ensemble.shape, ensemble.classes, ensemble.kind) == ((3, 8, 8), 3, "class")
    assert ensemble.by_class is not None
    torch.testing.assert_close(ensemble.by_class[0], torch.tensor([0.75, 0.25]))
    assert next(ensemble.experts[1].parameters()).dtype == torch.float32
    assert ensemble.experts.loads == 1


def test_an_expert_that_is_missing_need_not_be_asked(tmp_path):
    run = served(tmp_path / "run")
    parts = building.Parts([Stage(tmp_path / "gone"), run.expert(1)], [0.5, 0.5], first=1)
    assert building.build(parts, CPU).shape == (3, 8, 8)


def test_router_and_experts_compute_in_one_arithmetic(tmp_path):
    run = served(tmp_path / "run")
    parts = building.Parts([run.expert(0), run.expert(1)], [0.75, 0.25], run.router)
    ensemble = building.build(parts, CPU, arithmetic=Arithmetic(torch.bfloat16))
    assert ensemble.router is not None
    networks = [ensemble.experts[0], ensemble.experts[1], ensemble.router]
    assert {next(network.parameters()).dtype for network in networks} == {torch.bfloat16}


def test_a_lone_expert_is_checked_first(tmp_path):
    run = served(tmp_path / "run")
    assert len(building.lone(run.expert(0), CPU).experts) == 1
    with pytest.raises(RunError, match="not trained yet"):
        building.lone(Stage(tmp_path / "gone"), CPU)
    weights = run.expert(0).path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    with pytest.raises(CorruptError, match="damaged"):
        building.lone(run.expert(0), CPU)
