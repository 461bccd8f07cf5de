import pytest

from atoll.config import LaunchConfig
from atoll.errors import ConfigError
from atoll.launch import engine
from atoll.launch.engine import Place
from atoll.launch.local import Local


def test_engines_by_name(tmp_path):
    with engine.opened("local", Place(tmp_path, LaunchConfig())) as opened:
        assert isinstance(opened, Local)
    with pytest.raises(ConfigError, match="--on moon: jobs can run on local, ray, slurm"):
        engine.check("moon")
