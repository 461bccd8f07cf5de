"""Samples of networks are grouped as training samples are: a training sample falls where it is."""

import numpy as np
import torch

from atoll import config
from atoll.data.parts import Parts
from atoll.data.store import Reader
from atoll.evaluate.grouped import features_of, rule_of
from atoll.runs import Run, graph


def test_training_samples_fall_into_their_own_clusters_by_pixels(finished):
    _fall_where_they_are(finished)


def test_training_samples_fall_into_their_own_clusters_by_what_a_start_sees(tiny, _tiny_data):
    changes = ["start.steps=4", "start.batch=8", "encode.features='start'", "encode.precision='float32'"]
    run = Run.create(config.load(tiny, [*changes, "start.precision='float32'"]), tiny)
    (run.path / "data").symlink_to(_tiny_data / "data")
    for name in ("pool", "start", "features", "partition"):
        graph.node(run, name).make()
    _fall_where_they_are(run)
    assert Parts.of(run).grouped_by == "start"
    (run.start.path / "weights.safetensors").unlink()
    assert rule_of(run) is None, "without its network nobody can tell"


def _fall_where_they_are(run: Run) -> None:
    rule = rule_of(run)
    assert rule is not None
    batch = Reader([run.cluster(index) for index in range(3)], 8, 0).first(60)
    rows = features_of(run, batch.x_0, run.partition.contents)
    agree = torch.from_numpy(rule.assign_features(np.asarray(rows)).cluster) == batch.cluster
    assert agree.float().mean() >= 0.95, "rounding may move one at a border"
