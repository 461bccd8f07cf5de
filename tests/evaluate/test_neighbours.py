"""The nearest training samples of each part: the sample itself is its own nearest, in its own cluster."""

import numpy as np
import pytest
import torch

from atoll.data import rules
from atoll.data.partition import read_assignment
from atoll.data.parts import Parts
from atoll.errors import DataError
from atoll.evaluate import neighbours


@pytest.fixture
def known(finished):
    """Some training samples by id, with their clusters."""
    parts = Parts(finished.data)
    name = parts.names[0]
    cluster = read_assignment(finished.partition, name)["cluster"].to_pylist()
    ids = [bytes(raw).hex() for raw in parts.ids(name)]
    return {ids[row]: cluster[row] for row in (0, 7, 300, 4999)}


def test_a_training_sample_is_its_own_nearest(finished, known):
    samples = neighbours.by_id(finished, list(known))
    assert set(samples) == set(known)
    x_0 = torch.cat([samples[name] for name in known])
    near = neighbours.nearest(finished, x_0, 2)
    assert near is not None
    for (name, cluster), row in zip(known.items(), near, strict=True):
        assert [len(part) for part in row] == [2, 2, 2]
        assert row[cluster][0].id == name
        assert row[cluster][0].distance == pytest.approx(0, abs=2e-3)
        assert min(range(3), key=lambda k: row[k][0].distance) == cluster
        for part in row:
            assert part[0].distance <= part[1].distance


def test_every_neighbour_is_of_the_part_that_it_is_named_for(finished, known):
    x_0 = torch.cat(list(neighbours.by_id(finished, list(known)).values()))
    near = neighbours.nearest(finished, x_0, 1)
    assert near is not None
    for index in range(3):
        own = set()
        for path in sorted(finished.cluster(index).path.glob("part-*.parquet")):
            import pyarrow.parquet as pq

            own |= {raw.hex() for raw in pq.read_table(path, columns=["id"])["id"].to_pylist()}
        assert all(row[index][0].id in own for row in near)


def test_only_ids_are_told(finished, known):
    x_0 = next(iter(neighbours.by_id(finished, list(known)).values()))
    near = neighbours.nearest(finished, x_0, 1)
    assert near is not None
    assert set(near[0][0][0].facts()) == {"id", "distance"}


def test_where_the_data_are_not_at_hand_there_is_nothing(finished, monkeypatch):
    assert neighbours.nearest(finished, torch.zeros(1, 1, 28, 28), 0) is None
    monkeypatch.setattr(type(finished.data), "here", property(lambda stage: False))
    assert neighbours.nearest(finished, torch.zeros(1, 1, 28, 28), 1) is None
    assert neighbours.by_id(finished, ["00"]) == {}


def test_where_clusters_are_not_of_features_there_is_nothing(finished, monkeypatch):
    def unknown(stage):
        raise DataError("by labels")

    monkeypatch.setattr(rules, "load_rule", unknown)
    assert neighbours.nearest(finished, torch.zeros(1, 1, 28, 28), 1) is None
    monkeypatch.setattr(rules, "load_rule", lambda stage: np.zeros(1))
    assert neighbours.nearest(finished, torch.zeros(1, 1, 28, 28), 1) is None


@pytest.mark.parametrize("same", [True, False])
def test_of_a_part_that_the_run_has_grown_by_here_the_nearest_are_named_too(grown, monkeypatch, same):
    """By features at rest where they are of the same kind, else by those of the samples themselves."""
    run, private = grown(0)
    parts = Parts(private.data)
    ids = [bytes(raw).hex() for raw in parts.ids(parts.names[0])]
    x_0 = neighbours.by_id(run, ids[:1])[ids[0]]
    if not same:
        monkeypatch.setattr(Parts, "features", _only_of(run, Parts.features))
        monkeypatch.setattr(neighbours, "_alike", lambda *_: False)
    near = neighbours.nearest(run, x_0, 2)
    assert near is not None and [len(part) for part in near[0]] == [2, 2, 2, 2]
    assert near[0][3][0].id == ids[0] and near[0][3][0].distance == pytest.approx(0, abs=2e-3)


def _only_of(run, features):
    def guarded(parts, name):
        assert parts.stage.path == run.data.path, "features of others at rest are not of the run's kind"
        return features(parts, name)

    return guarded


def test_where_a_sample_lies_is_told_by_the_nearest_of_all_parts():
    """Fifteen: 2 of part 0, which are nearest, 9 of part 1, and far ones of part 2; of few, all of them."""
    near = [
        [neighbours.Neighbour("a", 0.1), neighbours.Neighbour("b", 0.2)],
        [neighbours.Neighbour("c", 0.3)] * 9,
        [neighbours.Neighbour("d", 9.0)] * 9,
    ]
    assert neighbours.shares(near) == pytest.approx([2 / 15, 9 / 15, 4 / 15])
    assert neighbours.shares([*near[:2], []]) == pytest.approx([2 / 11, 9 / 11, 0])
    assert neighbours.shares([[], []]) == [0, 0]
