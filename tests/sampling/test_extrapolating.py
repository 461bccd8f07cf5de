"""Experts taken farther from what they began with: on the line through both, or refused."""

import pytest
import torch

import atoll
from atoll.config import StartConfig
from atoll.errors import ConfigError
from atoll.models import checkpoint
from atoll.publish import export
from atoll.runs import Run, write_json
from tests.serving import network, same, served


def begun(folder, **sample):
    """Two experts, and what they began with."""
    run = served(folder, **sample)
    config = run.config.model_copy(update={"start": StartConfig()})
    write_json(run.path / "resolved.json", config.model_dump(mode="json"))
    network(run.start, "none", "start", seed=9)
    return Run.open(run.path)


def asked():
    source = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, 8, 8, generator=source), torch.tensor([0.2, 0.6, 0.9])


def alone(stage):
    return checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)[0]


def test_an_expert_answers_with_the_weights_on_the_line(tmp_path):
    run = begun(tmp_path / "run")
    expert, start = alone(run.expert(1)), alone(run.start)
    weights = {
        name: start.state_dict()[name] + 1.7 * (value - start.state_dict()[name])
        for name, value in expert.state_dict().items()
    }
    expected = torch.func.functional_call(expert, weights, asked())
    answer = atoll.load(run.path, extrapolate=1.7).ensemble.experts[1](*asked())
    torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-3)


def test_not_at_all_far_is_the_start_and_as_far_as_trained_is_the_expert(tmp_path):
    run = begun(tmp_path / "run")
    with torch.inference_mode():
        for reach, stage in ((0.0, run.start), (1.0, run.expert(0))):
            answer = atoll.load(run.path, extrapolate=reach).ensemble.experts[0](*asked())
            torch.testing.assert_close(answer, alone(stage)(*asked()), rtol=1e-5, atol=1e-5)


def test_what_experts_began_with_goes_along_when_they_are_exported(tmp_path):
    run = begun(tmp_path / "run", extrapolate=2.0)
    export.export(run, str(tmp_path / "out"))
    before, after = (atoll.load(path).sample(5) for path in (run.path, tmp_path / "out"))
    assert same(before, after)
    assert not same(before, atoll.load(run.path, extrapolate=1.0).sample(5))


def test_it_is_decided_when_a_model_is_opened(tmp_path):
    run = begun(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"atoll.load\(…, extrapolate=…\)"):
        atoll.load(run.path).sample(2, extrapolate=2.0)


def test_nothing_leads_away_from_a_start_that_is_not_there(tmp_path):
    run = served(tmp_path / "run")
    with pytest.raises(ConfigError, match="has not all here that its experts began with"):
        atoll.load(run.path, extrapolate=2.0)
    with pytest.raises(ConfigError, match="a lone expert"):
        atoll.load(run.expert(0).path, extrapolate=2.0)
