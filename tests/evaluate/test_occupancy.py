"""Shares of clusters and classes against numbers worked out by hand and against scipy."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import spatial

from atoll.config import EncodeConfig
from atoll.data import rules
from atoll.errors import DataError
from atoll.evaluate import grouped, occupancy
from tests.evaluate.made import contents_of

COUNTS = st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(any)


def test_shares_by_hand():
    found = occupancy.shares(torch.tensor([0, 0, 0, 2]), torch.tensor([10, 10, 20]), 5)
    assert found["samples"] == [0.75, 0.0, 0.25]
    assert found["data"] == [0.25, 0.25, 0.5]
    # against the middle (1/2, 1/8, 3/8), in bits
    left = 0.75 * math.log2(1.5) + 0.25 * math.log2(2 / 3)
    right = 0.25 * math.log2(0.5) + 0.25 * math.log2(2) + 0.5 * math.log2(4 / 3)
    assert found["divergence"]["value"] == pytest.approx((left + right) / 2)
    assert found["divergence"]["num"] == 4


@given(COUNTS, st.data())
def test_the_divergence_is_jensen_and_shannons(real, data):
    members = data.draw(st.lists(st.integers(0, len(real) - 1), min_size=1, max_size=30))
    found = occupancy.apart(torch.tensor(members), torch.tensor(real))
    counts = [members.count(group) for group in range(len(real))]
    expected = spatial.distance.jensenshannon(counts, real, base=2) ** 2
    assert found == pytest.approx(expected, abs=1e-9)
    assert -1e-12 <= found <= 1 + 1e-12


@given(COUNTS)
def test_samples_as_the_data_are_not_apart(real):
    members = torch.repeat_interleave(torch.arange(len(real)), torch.tensor(real))
    assert occupancy.apart(members, torch.tensor(real)) == pytest.approx(0, abs=1e-12)


@given(COUNTS, st.integers(2, 9))
def test_only_shares_count_not_how_many_data_there_are(real, times):
    members = torch.tensor([0, 1, 1])
    once = occupancy.apart(members, torch.tensor(real))
    assert occupancy.apart(members, times * torch.tensor(real)) == pytest.approx(once, abs=1e-12)


def test_what_has_collapsed_is_one_bit_away():
    found = occupancy.shares(torch.zeros(50, dtype=torch.long), torch.tensor([0, 30, 30]), 10)
    assert found["divergence"]["value"] == pytest.approx(1)
    assert found["divergence"]["low"] == pytest.approx(1)
    assert found["divergence"]["high"] == pytest.approx(1)


def test_the_interval_never_falls_below_nothing():
    members = torch.arange(40) % 2
    found = occupancy.shares(members, torch.tensor([1, 1]), 50)["divergence"]
    assert found["value"] == pytest.approx(0, abs=1e-12)
    assert found["low"] == 0
    assert found["high"] > 0.001


RUN = SimpleNamespace(partition=None, config=SimpleNamespace(encode=EncodeConfig(), grouped_by_start=False))
"""As much of a run as is asked for."""


class SignRule(rules.FeatureRule):
    """Cluster 1 where the first feature is above the middle of a byte."""

    def __init__(self):
        self.dtypes = []

    def assign_features(self, features):
        self.dtypes.append(str(features.dtype))

        class Assigned:
            cluster = (features[:, 0] > 127.5).astype("int64")

        return Assigned()


def test_samples_get_the_cluster_of_the_partitions_own_rule(monkeypatch):
    """They are shown to it as they would rest: bytes, and half precision of their features."""
    rule = SignRule()
    monkeypatch.setattr(rules, "load_rule", lambda stage: rule)
    x_0 = torch.full((grouped.BATCH + 2, 1, 28, 28), -0.5)
    x_0[::3] = 0.5
    found = occupancy.clusters_of(RUN, x_0, contents_of((1, 28, 28)))
    assert found.tolist() == [int(index % 3 == 0) for index in range(len(x_0))]
    assert rule.dtypes == ["float16"]


def test_a_rule_that_knows_nothing_of_new_samples_gives_none(monkeypatch):
    x_0, contents = torch.zeros(2, 1, 28, 28), contents_of((1, 28, 28))
    monkeypatch.setattr(rules, "load_rule", lambda stage: object())
    assert occupancy.clusters_of(RUN, x_0, contents) is None

    def refuse(stage):
        raise DataError("made by 'file'")

    monkeypatch.setattr(rules, "load_rule", refuse)
    assert occupancy.clusters_of(RUN, x_0, contents) is None
