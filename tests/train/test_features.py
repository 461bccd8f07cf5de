"""What a start sees: the same numbers by a second way, of every sample, and what clusters are made by."""

import numpy as np
import pytest
import torch

from atoll import config
from atoll.data.parts import Parts
from atoll.data.store import Reader
from atoll.errors import ConfigError
from atoll.flow import draws
from atoll.models import checkpoint
from atoll.models.seen import TIME
from atoll.runs import Run, graph
from atoll.train.features import features

START = [
    "start.steps=4",
    "start.batch=8",
    "encode.features='start'",
    "expert.depth=4",
    "start.precision='float32'",
]


@pytest.fixture
def begun(tiny, _tiny_data) -> Run:
    """A run whose start is trained and whose samples are not grouped yet."""
    run = Run.create(config.load(tiny, [*START, "encode.precision='float32'"]), tiny)
    (run.path / "data").symlink_to(_tiny_data / "data")
    for name in ("pool", "start", "features"):
        graph.node(run, name).make()
    return run


def test_the_graph_trains_the_start_before_there_are_clusters(tiny):
    run = Run(tiny.parent / "nowhere", config.load(tiny, START))
    names = [node.name for node in graph.made(run)]
    assert names[:5] == ["data", "pool", "start", "features", "partition"]
    assert "pool" not in [node.name for node in graph.made(Run(run.path, config.load(tiny, START[:2])))]


def test_every_sample_has_features_which_a_second_way_gives_as_well(begun):
    parts, width = Parts.of(begun), begun.config.expert.width
    name = parts.names[0]
    rows = parts.features(name)
    assert rows.shape == (parts.rows_of[name], 2 * width)
    weights, described = (begun.start.path / one for one in (checkpoint.WEIGHTS, checkpoint.CONFIG))
    model, _ = checkpoint.load(weights, described)
    sample = parts.columns(name, ["sample"])["sample"][3].as_py()
    pixels = torch.from_numpy(np.frombuffer(sample, np.uint8).reshape(1, 1, 28, 28).copy())
    x_0 = pixels.float() / 127.5 - 1
    noise = torch.randn(1, 28, 28, generator=draws.generator(0, "features"))
    t = torch.tensor([TIME])
    tokens = model.trunk.tokens((1 - TIME) * x_0 + TIME * noise)
    modulator, _ = model.trunk.modulators(model.trunk.time(t))
    for block in model.trunk.blocks[:2]:
        tokens = block(tokens, modulator)
    by_hand = torch.cat([tokens.mean(1), tokens.var(1, correction=0).sqrt()], 1)[0]
    torch.testing.assert_close(torch.from_numpy(np.array(rows[3])), by_hand.detach(), rtol=1e-4, atol=1e-5)


def test_clusters_are_made_by_them_and_experts_go_on(begun):
    stage = graph.node(begun, "partition").make()
    assert stage.contents.features == "start"
    assert stage.record.made_from["features"] == begun.features.digest
    assert sum(stage.contents.sizes) == stage.contents.rows == Reader([begun.pool], 8, 0).rows
    made = graph.node(begun, "expert 0").make()
    assert made.record.made_from["init"] == begun.start.digest


def test_an_interrupted_call_goes_on_with_what_is_there(begun):
    stage = begun.features
    files = {name: (stage.path / name).stat().st_mtime_ns for name in stage.record.files}
    record = stage.record
    (stage.path / "done.json").unlink()
    assert features(begun).record == record
    assert {name: (stage.path / name).stat().st_mtime_ns for name in files} == files


def test_without_anything_to_begin_with_it_is_refused(tiny):
    resolved = config.load(tiny, START[2:3])
    with pytest.raises(ConfigError, match="experts begin with nothing: add"):
        config.check(resolved, config.Facts())
