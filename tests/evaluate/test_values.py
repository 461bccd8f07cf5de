"""The record of a game: means, intervals and groups that add up, worked out by hand where it can be."""

import itertools
import json

import pytest
import torch

from atoll import config
from atoll.credit import defence, shapley
from atoll.credit.shapley import Game
from atoll.evaluate import ground, held_out, values, worth
from atoll.evaluate.held_out import Plan
from atoll.evaluate.worth import Played
from atoll.runs import Run
from tests.evaluate.test_worth import DATA, batch_of, ensemble_of
from tests.evaluate.test_worth import played as exactly


class Known(Run):
    """A run of which only the partition's record is known."""

    @property
    def partition(self):
        from types import SimpleNamespace

        return SimpleNamespace(
            contents=SimpleNamespace(sizes=[6, 10, 8], class_names=("shoe", "coat"), rows=24)
        )


def run_of(tmp_path, **credit):
    settings = {"name": "x", "partition": {"clusters": 3}, "credit": {"num": 240, "bins": 4, **credit}}
    return Known(tmp_path, config.validate(settings, "a test"))


@pytest.fixture
def played(tmp_path):
    one = exactly(tmp_path, num=240, bins=4)
    return Played(one.game, one.plan, one.cluster, torch.arange(240) % 2)


def by_hand(rows, sample):
    """A game of one expert of weight one whose value is `rows`."""
    zero = torch.zeros(len(rows), 1, 1, dtype=torch.float64)
    game = Game(
        torch.ones(len(rows), 1).double(), -torch.tensor(rows)[:, None] / 2, zero, torch.ones(len(rows))
    )
    numbers = torch.tensor(sample)
    plan = Plan(
        numbers, torch.full((len(rows),), 0.5), torch.zeros(len(rows), dtype=torch.long), numbers.unique()
    )
    return Played(game, plan, torch.zeros(len(rows), dtype=torch.long), None)


def test_rows_of_one_sample_are_no_independent_witnesses():
    once = by_hand([1.0, 3.0, 5.0, 7.0], [0, 1, 2, 3])
    twice = by_hand([1.0, 3.0, 5.0, 7.0] * 2, [0, 1, 2, 3] * 2)
    one, two = (values.measured(each, shapley.shapley(each.game)) for each in (once, twice))
    assert float(one.mean) == float(two.mean) == 4.0
    assert float(one.error) == pytest.approx(float(two.error))


def test_samples_that_come_more_often_count_more_often():
    uneven = by_hand([1.0, 1.0, 7.0], [0, 0, 1])
    assert float(values.measured(uneven, shapley.shapley(uneven.game)).mean) == pytest.approx(3.0)


def test_an_interval_is_196_errors_on_either_side():
    assert values.facts(1.0, 0.5, 9) == {
        "value": 1.0,
        "low": pytest.approx(0.02),
        "high": pytest.approx(1.98),
        "num": 9,
    }


def test_everything_is_json_and_adds_up(tmp_path, played):
    record = json.loads(json.dumps(values.record(run_of(tmp_path), played, played)))
    worth = [part["value"]["value"] for part in record["parts"]]
    assert sum(worth) == pytest.approx(record["loss"]["gain"]["value"])
    assert sum(part["per_cent"] for part in record["parts"]) == pytest.approx(100)
    base, whole = record["loss"]["base"]["value"], record["loss"]["ensemble"]["value"]
    assert base - whole == pytest.approx(record["loss"]["gain"]["value"])
    assert [part["samples"] for part in record["parts"]] == [6, 10, 8]
    assert sum(part["routed"]["value"] for part in record["parts"]) == pytest.approx(1)
    for part in record["parts"]:
        assert part["value"]["low"] < part["value"]["value"] < part["value"]["high"]


def test_what_others_would_say_instead_is_lost_near_the_noise(tmp_path, played):
    """Perfect experts are missed by their own clusters, and the more the farther those lie from the rest."""
    run, batch = run_of(tmp_path, num=240), batch_of(DATA)
    rows = held_out.near_the_noise(run, len(batch.x_0))
    late = worth.play(run, ensemble_of(DATA), ground.gaussian(batch.x_0), batch, rows=rows)
    lost = values.record(run, played, late)["parts"]
    points, cluster = DATA.points, DATA.cluster
    away = [
        float(
            (cluster == k).sum()
            * (points[cluster == k].mean(0) - points[cluster != k].mean(0)).square().sum()
        )
        for k in range(3)
    ]
    assert all(part["replaced"]["low"] > 0 for part in lost)
    order = sorted(range(3), key=lambda k: lost[k]["replaced"]["value"])
    assert order == sorted(range(3), key=lambda k: away[k])
    assert values.table({**values.record(run, played, late), "base": "start"}).count("replaced") == 1


@pytest.mark.parametrize("kind", ["times", "classes", "clusters"])
def test_values_of_groups_are_those_of_all_weighted_by_rows(tmp_path, played, kind):
    record = values.record(run_of(tmp_path), played, played)
    rows = sum(group["rows"] for group in record[kind])
    assert rows == 240
    for k, part in enumerate(record["parts"]):
        mean = sum(group["rows"] * group["values"][k]["value"] for group in record[kind]) / rows
        assert mean == pytest.approx(part["value"]["value"], abs=1e-9)


def test_groups_have_their_names(tmp_path, played):
    record = values.record(run_of(tmp_path), played, played)
    assert [group["group"] for group in record["classes"]] == ["shoe", "coat"]
    ends = held_out.edges(run_of(tmp_path))
    assert [(group["from"], group["to"]) for group in record["times"]] == list(itertools.pairwise(ends))
    unlabelled = Played(played.game, played.plan, played.cluster, None)
    assert values.record(run_of(tmp_path), unlabelled, unlabelled)["classes"] == []


def test_a_cluster_needs_its_own_expert_most(tmp_path, played):
    record = values.record(run_of(tmp_path), played, played)
    for k, group in enumerate(record["clusters"]):
        worth = [value["value"] for value in group["values"]]
        assert worth.index(max(worth)) == k


def test_a_copy_is_named_and_clones_are_looked_at(tmp_path, played):
    game = played.game
    half = torch.cat([game.weights[:, :1] / 2, game.weights[:, :1] / 2, game.weights[:, 1:2]], 1)
    which = torch.tensor([0, 0, 1])
    doubled = Game(half, game.along[:, which], game.pairs[:, which][:, :, which], game.base)
    record = values.record(run_of(tmp_path), Played(doubled, played.plan, played.cluster, None), played)
    assert record["copies"] == [(0, 1)]
    assert "parts 0 and 1 say the same" in values.table({**record, "base": "start"})


def test_audited_values_are_of_what_is_not_beyond_the_usual(tmp_path, played):
    record = values.record(run_of(tmp_path, clip=0.5), played, played)
    clipped = defence.clip(played.game, played.cluster, played.plan.stratum, 0.5)
    home = played.cluster[:, None] == torch.arange(3)
    better = -(2 * clipped.along + clipped.pairs.diagonal(dim1=1, dim2=2))
    expected = (better * home).mean(0).tolist()
    assert [part["audited"]["value"] for part in record["parts"]] == pytest.approx(expected)
    assert expected != pytest.approx([part["value"]["value"] for part in record["parts"]])


def test_the_table_is_for_people(tmp_path, played):
    record = {**values.record(run_of(tmp_path), played, played), "base": "start"}
    lines = values.table(record).splitlines()
    assert len(lines) == 1 + 3 + 1
    assert "expert 2" in lines[3]
    assert lines[-1].endswith("base: start")


def test_parts_that_gain_nothing_have_no_per_cent(tmp_path, played):
    game = played.game
    worse = Game(game.weights, game.along.abs() + 1, game.pairs, game.base)
    record = values.record(run_of(tmp_path), Played(worse, played.plan, played.cluster, None), played)
    assert {part["per_cent"] for part in record["parts"]} == {None}
    assert {part["ratio"] for part in record["parts"]} == {None}
    assert "look at it" not in values.table({**record, "base": "start"})
