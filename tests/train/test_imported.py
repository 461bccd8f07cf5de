import json

import pytest
import torch
from safetensors.torch import save_file

from atoll.config import validate
from atoll.errors import CheckpointError, ConfigError, StaleError
from atoll.models import adapt, checkpoint
from atoll.sampling.opening import open_model
from atoll.train import imported, jobs
from tests.models.test_convert import HEADS, dit_weights


@pytest.fixture
def dit(tmp_path):
    save_file(dit_weights(channels=1, classes=4, side=14), tmp_path / "dit.safetensors")
    return str(tmp_path / "dit.safetensors")


def test_an_imported_expert_samples_at_once(dit, tmp_path):
    stage = imported.bring_in(dit, tmp_path / "out", None, [f"heads={HEADS}"])
    ensemble = open_model(stage.path)
    assert (ensemble.ensemble.shape, ensemble.ensemble.classes) == ((1, 28, 28), 4)
    assert ensemble.sample(2, label=3, steps=3, guidance=2.0).isfinite().all()


def test_the_same_again_is_a_no_op_and_another_is_refused(dit, tmp_path):
    out, heads = tmp_path / "out", [f"heads={HEADS}"]
    before = imported.bring_in(dit, out, None, heads).record
    assert imported.bring_in(dit, out, None, heads).record == before
    with pytest.raises(StaleError, match="other settings"):
        imported.bring_in(dit, out, None, [*heads, "path=cosine"])
    stage = imported.bring_in(dit, out, None, [*heads, "path=cosine"], start_over=True)
    assert checkpoint.read_blueprint(stage.path / checkpoint.CONFIG).objective.path == "cosine"


def test_the_printed_recipe_starts_experts_from_it(dit, tmp_path, prepared):
    """The lines that the command prints, in a run: unconditional, so that the classes are folded away."""
    stage = imported.bring_in(dit, tmp_path / "out", None, [f"heads={HEADS}"])
    lines = stage.contents.recipe.splitlines()[1:]
    overrides = [f"expert.{line.replace(' = ', '=')}" for line in lines]
    run = prepared(*overrides, "expert.steps=0")
    expert = jobs.expert(run, 0)
    blueprint = checkpoint.read_blueprint(expert.path / checkpoint.CONFIG)
    assert blueprint.condition == "none"
    assert blueprint.objective == checkpoint.Objective(path="linear-beta", prediction="noise")
    told_nothing = open_model(stage.path, precision="float32").velocity(
        torch.ones(2, 1, 28, 28), torch.tensor([0.3, 0.7])
    )
    again = open_model(expert.path, precision="float32", shrink=False).velocity(
        torch.ones(2, 1, 28, 28), torch.tensor([0.3, 0.7])
    )
    torch.testing.assert_close(again, told_nothing, atol=1e-5, rtol=1e-5)


def test_an_imported_expert_joins_an_ensemble_untrained(dit, tmp_path, prepared):
    stage = imported.bring_in(dit, tmp_path / "out", None, [f"heads={HEADS}"])
    its = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG).network
    override = {
        "clusters": [2],
        "init": str(stage.path),
        "steps": 0,
        "path": "linear-beta",
        "prediction": "noise",
        "width": its.width,
        "depth": its.depth,
        "heads": its.heads,
        "patch": [2, 2],
        "activation": its.activation,
    }
    run = prepared()
    tree = run.config.model_dump(mode="json")
    tree["expert"]["override"] = [override]
    run.config = validate(json.loads(json.dumps(tree)), "x")
    (run.path / "resolved.json").write_text(json.dumps(tree))
    for k in range(3):
        jobs.expert(run, k)
    jobs.router(run)
    samples = open_model(run.path).sample(3, strategy="full", steps=3)
    assert samples.isfinite().all()


def test_another_grid_at_import(dit, tmp_path):
    stage = imported.bring_in(dit, tmp_path / "out", None, [f"heads={HEADS}", "grid=[12, 20]"])
    assert open_model(stage.path).sample(1, label=0, steps=2).shape == (1, 1, 12, 20)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("heads", "key=value"), ("heads=0", "--set heads"), ("heds=3", "--set heds.*known: heads")],
)
def test_wrong_settings_are_named(dit, tmp_path, setting, said):
    with pytest.raises(ConfigError, match=said):
        imported.bring_in(dit, tmp_path / "out", None, [setting])
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_for_a_checkpoint_that_does_not_fit(tmp_path):
    with pytest.raises(CheckpointError):
        imported.bring_in(str(tmp_path / "no.safetensors"), tmp_path / "out", None, [])
    assert not (tmp_path / "out").exists()


def test_resampled_positions_survive_training(tmp_path, prepared):
    """A checkpoint for 14x14 starts an expert for 28x28; its table is not trained and must not be lost."""
    save_file(dit_weights(channels=1, classes=4, side=7), tmp_path / "dit.safetensors")
    stage = imported.bring_in(str(tmp_path / "dit.safetensors"), tmp_path / "out", None, [f"heads={HEADS}"])
    lines = stage.contents.recipe.splitlines()[1:]
    run = prepared(*(f"expert.{line.replace(' = ', '=')}" for line in lines), "expert.steps=1")
    expert = jobs.expert(run, 0)
    network, blueprint = checkpoint.load(expert.path / checkpoint.WEIGHTS, expert.path / checkpoint.CONFIG)
    assert blueprint.tables
    have = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    table, _ = adapt.to_grid(checkpoint.read_tensors(stage.path / checkpoint.WEIGHTS), have, (1, 28, 28))
    assert torch.equal(network.state_dict()["trunk.position"], table["trunk.position"])
