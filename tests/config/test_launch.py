"""[launch] and [plan]."""

import pytest
from pydantic import ValidationError

from atoll.config import LaunchConfig, PlanConfig


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("at_once", 0),
        ("threads", 0),
        ("patience", 0.0),
        ("lease", -1.0),
        ("retries", -1),
        ("gpus", -0.5),
        ("minutes", 0),
        ("grace", 0),
        ("resources", {"A100": "one"}),
        ("slurm", {"partition": [1]}),
    ],
)
def test_what_no_machine_can_do_is_refused(key, value):
    with pytest.raises(ValidationError, match=key):
        LaunchConfig.model_validate({key: value})


def test_shares_of_a_gpu_and_options_of_others_pass():
    config = LaunchConfig.model_validate(
        {"gpus": 0.5, "retries": 0, "resources": {"A100": 1}, "slurm": {"partition": "gpu", "nice": 5}}
    )
    assert config.resources == {"A100": 1.0}
    assert config.slurm == {"partition": "gpu", "nice": 5}


def test_no_silence_is_as_long_as_patience_by_default():
    """Else a job whose store fails for a while would be taken for dead while it waits."""
    config = LaunchConfig()
    assert config.lease < config.patience


def test_a_plan_reads_shapes_from_lists():
    assert PlanConfig.model_validate({"shape": [3, 32, 32]}).shape == (3, 32, 32)
    with pytest.raises(ValidationError, match="samples"):
        PlanConfig(samples=0)
