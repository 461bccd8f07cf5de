"""Each way of deciding gives every sample a cluster, the same wherever the sample appears."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.config import PartitionConfig
from atoll.data.parts import Parts
from atoll.data.rules import FeatureRule, LabelRule, RandomRule, View, WithinRule, draw, lottery, read_rule
from atoll.errors import DataError


def shuffled(parts: Parts, order: list[int]) -> Parts:
    """The same parts in another order."""
    parts.names = [parts.names[index] for index in order]
    return parts


def test_the_lottery_is_fair_and_known_by_id_and_seed_alone() -> None:
    ids = np.random.default_rng(0).integers(0, 256, (20_000, 32), dtype=np.uint8)
    first, again, other = lottery(ids, 1), lottery(ids[::-1], 1)[::-1], lottery(ids, 2)
    np.testing.assert_array_equal(first, again)
    for tickets in (first, other):
        assert abs(float(tickets.mean()) / 2**64 - 0.5) < 0.01
    assert abs(np.corrcoef(first.astype(float), other.astype(float))[0, 1]) < 0.03


@pytest.mark.parametrize("count", [10, 1000])
def test_a_draw_does_not_depend_on_the_order_of_parts(parts: Parts, count: int) -> None:
    ids, features = draw(parts, count, seed=5)
    assert len(ids) == min(count, 60)  # the dropped duplicates are not drawn
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        again, same = draw(shuffled(parts, order), count, seed=5)
        np.testing.assert_array_equal(ids, again)
        np.testing.assert_array_equal(features, same)
    assert not np.array_equal(ids, draw(parts, count, seed=6)[0])


def test_a_draw_takes_the_lowest_tickets(parts: Parts) -> None:
    everyone = np.unique(np.concatenate([parts.ids(name) for name in parts.names]), axis=0)
    lowest = everyone[np.argsort(lottery(everyone, 5))[:10]]
    np.testing.assert_array_equal(draw(parts, 10, seed=5)[0], lowest)


def test_random_clusters_are_of_equal_size(parts: Parts) -> None:
    ids = draw(parts, 1000, seed=0)[0]
    rule = RandomRule.fit(ids, 7, seed=0)
    counts: Counter[int] = Counter()
    for name in parts.names:
        counts.update(rule.assign(View(parts, name)).cluster[parts.kept(name)].tolist())
    assert sorted(counts.values()) == [8, 8, 8, 9, 9, 9, 9]


def test_random_clusters_say_nothing_about_who_was_drawn() -> None:
    """A sample of the lowest tickets must not all fall into the first cluster."""
    ids = np.random.default_rng(0).integers(0, 256, (40_000, 32), dtype=np.uint8)
    sample = ids[np.argsort(lottery(ids, 0))[:4000]]
    rule = RandomRule.fit(sample, 4, seed=0)
    everyone = np.bincount(rule.assign(_ViewOf(ids)).cluster)
    assert everyone.max() / everyone.min() < 1.1


class _ViewOf(View):
    def __init__(self, ids: np.ndarray) -> None:
        self.__dict__["ids"] = ids


def test_labels_have_clusters_of_their_own_or_are_packed_evenly() -> None:
    counts = {"a": 50, "b": 30, "c": 20, "d": 10, "e": 0}
    own = LabelRule.fit(counts, ["a", "b", "c", "d", "e"], 4)
    packed = LabelRule.fit(counts, ["a", "b", "c", "d", "e"], 2)
    assert own._cluster_of == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert packed._cluster_of == {"a": 0, "b": 1, "c": 1, "d": 0}
    with pytest.raises(DataError, match="there are 4 labels for 5 clusters"):
        LabelRule.fit(counts, ["a", "b", "c", "d", "e"], 5)


def test_features_that_do_not_tell_samples_apart_are_told() -> None:
    with pytest.raises(DataError, match="tell only 2 samples apart for 3 clusters"):
        FeatureRule.fit(np.repeat(np.eye(2), 30, axis=0), PartitionConfig(clusters=3), 0, None)


@settings(max_examples=40)
@given(data=st.data())
def test_features_give_every_sample_a_cluster_and_every_cluster_a_sample(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 400), "samples")
    clusters = data.draw(st.integers(1, min(count, 20)), "clusters")
    seed = data.draw(st.integers(0, 2**40), "seed")
    random = np.random.default_rng(seed)
    # Few different rows, many times each, are the hard case: centres coincide and cells run empty.
    distinct = random.normal(size=(data.draw(st.integers(clusters, max(clusters, count)), "distinct"), 3))
    rows = np.concatenate([np.arange(len(distinct)), random.integers(0, len(distinct), count)])[:count]
    features = np.concatenate([distinct[rows], distinct[:clusters]]).astype(np.float16)
    distinct_directions = len(np.unique(FeatureRule.project(features, None), axis=0))
    config = PartitionConfig(clusters=clusters, fine=data.draw(st.integers(1, 64), "fine"))
    try:
        found = FeatureRule.fit(features, config, seed, None).assign_features(features).cluster
    except DataError:
        assert distinct_directions < clusters
    else:
        assert np.bincount(found, minlength=clusters).min() > 0
        assert len(found) == len(features)


def test_within_classes_their_means_are_taken_away(parts: Parts, tmp_path) -> None:
    """Against sums by hand; what is left has the mean zero in every class, and the rule comes back whole."""
    seen: list[np.ndarray] = []

    def fit(rows):
        seen.append(rows)
        return FeatureRule.fit(rows, PartitionConfig(clusters=2, fine=8), 0, None)

    rule = WithinRule.fit(parts, 1000, 0, fit)
    by_class: dict[str, list[np.ndarray]] = {}
    for name in parts.names:
        view = View(parts, name)
        for label, row, keep in zip(view.labels, view.features, parts.kept(name), strict=True):
            if keep and label is not None:
                by_class.setdefault(label, []).append(np.asarray(row, np.float64))
    assert len(by_class) > 1
    written = sorted(rule.save(tmp_path))
    assert "class-means.npy" in written
    means = np.load(tmp_path / "class-means.npy")
    by_hand = [np.mean(by_class[label], axis=0) for label in sorted(by_class)]
    np.testing.assert_allclose(means, by_hand, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen[0].mean(axis=0), 0, atol=1e-3 * max(1.0, float(np.abs(means).max())))
    again = read_rule(tmp_path)
    for name in parts.names:
        view = View(parts, name)
        np.testing.assert_array_equal(rule.assign(view).cluster, again.assign(view).cluster)
