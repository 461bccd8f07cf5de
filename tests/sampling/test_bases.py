"""The network of an adapter is the one whose digest it names, and no other."""

from pathlib import Path

import pytest
import torch

from atoll.errors import RunError
from atoll.models import adapter, checkpoint
from atoll.models.checkpoint import Adaptation, Blueprint
from atoll.runs import Run, Stage, write_json
from atoll.runs.records import ExpertContents
from atoll.sampling import bases
from atoll.train import jobs
from tests.models.test_adapter import blueprint, network, question, stirred


def stage(folder: Path, about: Blueprint, tensors: dict[str, torch.Tensor]) -> Stage:
    made: Stage = Stage(folder)
    made.begin({})
    jobs.publish(made, about, tensors, {}, ExpertContents)
    return made


@pytest.fixture
def base(tmp_path: Path) -> Stage:
    return stage(tmp_path / "start", blueprint(), dict(network().state_dict()))


def adapted(folder: Path, base: Stage) -> Stage:
    about = Adaptation(rank=2, scale=0.5, base=base.record.files[checkpoint.WEIGHTS])
    model = stirred(adapter.attach(network(), about))
    return stage(folder, blueprint().model_copy(update={"adapter": about}), adapter.learnt(model))


def test_it_is_found_by_its_digest(base, tmp_path):
    one = adapted(tmp_path / "one", base)
    other = stage(tmp_path / "other", blueprint(), dict(network(qk_norm=True).state_dict()))
    about = checkpoint.read_blueprint(one.path / checkpoint.CONFIG)
    assert bases.base_of(about, [other, base], one.path) is base
    with pytest.raises(RunError, match="adapter of a network that is not here"):
        bases.base_of(about, [other], one.path)


def test_weights_of_an_adapter_are_those_of_one_network(base, tmp_path):
    tensors, about = bases.weights(adapted(tmp_path / "one", base), [base])
    assert about == blueprint()
    whole = about.build()
    whole.load_state_dict(tensors)
    model = stirred(adapter.attach(network(), Adaptation(rank=2, scale=0.5, base="0" * 64)))
    torch.testing.assert_close(whole(*question("class")), model(*question("class")), rtol=1e-4, atol=1e-5)
    same, _ = bases.weights(base, [])
    assert same.keys() == tensors.keys()


def test_a_run_has_its_start_and_what_it_took_in(finished, base, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("start", "init/00", "init/01"):
        stage(folder / name, blueprint(), dict(network().state_dict()))
    (folder / "init" / "02").mkdir()
    run = Run(folder, finished.config)
    assert [one.path.name for one in bases.of_run(run)] == ["start", "00", "01"]
    lone: Stage = Stage(folder / "experts" / "00")
    assert bases.near(lone) == []
    write_json(folder / "resolved.json", {})
    assert [one.path.name for one in bases.near(lone)] == ["start", "00", "01"]
