import pytest

from atoll.config import validate
from atoll.errors import ConfigError
from atoll.runs import graph, inputs


def test_experts_are_trained_on_what_the_shared_network_leaves(prepared):
    run = prepared("start.steps=3", "start.batch=4", "start.lr=0.5", "shared.steps=2", "shared.below=0.25")
    config = run.config
    assert config.expert_for(1).time_span == (0.25, 1.0)
    assert config.start_settings().time_span == (0.0, 1.0)
    shared = config.shared_settings()
    assert (shared.time_span, shared.steps, shared.batch) == ((0.0, 0.25), 2, 4)
    assert (shared.lr, shared.decay) == (0.5, "cosine"), "trained as the start, whose rate falls here"
    read_again = validate(config.model_dump(mode="json"), "a test")
    assert (read_again.shared_settings(), read_again.expert_for(1)) == (shared, config.expert_for(1))


def test_what_is_sampled_reads_the_shared_network(prepared):
    run = prepared("start.steps=3", "shared.steps=2")
    names = [one.name for one in graph.made(run)]
    assert names.index("start") < names.index("shared") < names.index("samples")
    for name in ("samples", "report"):
        assert "shared" in [one.name for one in graph.node(run, name).reads]
    assert "shared" not in [one.name for one in graph.node(run, "expert 0").reads]
    plain = prepared(name="plain")
    assert "shared" not in [one.name for one in graph.made(plain)]
    alone = prepared("shared.steps=2", name="alone")
    assert inputs.expert_from(plain, 0)["settings"] != inputs.expert_from(alone, 0)["settings"]


@pytest.mark.parametrize("span", [[0.5, 0.5], [-0.1, 1.0], [0.9, 0.2]])
def test_a_span_of_times_is_two_times(span):
    with pytest.raises(ConfigError, match="time_span is two times from 0 to 1"):
        validate({"name": "a", "expert": {"time_span": span}}, "a test")
