import pytest

from atoll.errors import AtollError
from atoll.serve.models import open_models
from tests.serving import served


def test_a_run_by_its_name(tmp_path):
    run = served(tmp_path / "run", "class")
    models = open_models(run.path, steps=7)
    model = models["run"]
    assert list(models) == ["run"]
    assert (model.shape, model.kind, model.class_names) == ((3, 8, 8), "image", ("boot", "shirt", "bag"))
    assert model.sampler.defaults.steps == 7


def test_a_lone_expert_makes_numbers(tmp_path):
    run = served(tmp_path / "run")
    model = open_models(run.expert(0).path)["00"]
    assert (model.kind, model.class_names, model.contents) == ("numbers", (), None)


def test_what_is_not_there_is_said_so(tmp_path):
    with pytest.raises(AtollError):
        open_models(tmp_path / "nothing")
