"""A tiny run valued and samples traced to its parts, from end to end."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from atoll.evaluate import credit, ground, held_out, neighbours, values
from atoll.models import costs
from atoll.runs import CREDIT, Run, read_stamped
from atoll.sampling import gallery, sample
from atoll.sampling.makers import SENTENCE

QUICK = ["credit.num=96", "credit.bins=4", "credit.levels=4", "credit.nearest=1", "credit.calibration=2"]


@pytest.fixture
def record(finished):
    return credit.value(finished.changed(QUICK))


def test_the_record_says_on_what_it_stands(finished, record):
    assert record == json.loads(json.dumps(record))
    assert (record["run"], record["epoch"], record["rows"]) == ("tiny", 0, 96)
    assert record["commitment"] == held_out.commitment(0)
    assert record["held_out"]["unseen"] is False
    assert record["held_out"]["used"] == 96
    assert record["base"] == "mean and spread of the held-out samples"
    assert len(record["parts"]) == 3
    kept = read_stamped(finished.path / CREDIT)
    assert {key: kept[key] for key in record} == record


def test_the_same_question_has_the_same_answer_and_another_epoch_another(finished, record):
    again = credit.value(finished.changed([*QUICK, "credit.batch=17"]))
    values = [part["value"]["value"] for part in record["parts"]]
    assert [part["value"]["value"] for part in again["parts"]] == pytest.approx(values, rel=1e-3, abs=1e-6)
    later = credit.value(finished.changed([*QUICK, "credit.epoch=1"]))
    assert [part["value"]["value"] for part in later["parts"]] != pytest.approx(values, rel=1e-3)


def test_cost_is_counted_by_the_networks_sizes(finished, record):
    config = finished.config
    shape = finished.partition.contents.shape
    expert = costs.forward_flops(costs.Network(config.expert, shape))
    router = costs.forward_flops(costs.Network(config.router, shape, clusters=3))
    assert record["cost"]["flops"] == pytest.approx((96 + 96) * (3 * expert + router)), "near the noise too"
    trained = 3 * expert * config.expert.steps * config.expert.batch
    assert record["cost"]["of_one_training"] == pytest.approx(record["cost"]["flops"] / trained)
    twice = credit.value(finished.changed([*QUICK, "credit.num=192"]))
    assert twice["cost"]["flops"] == pytest.approx(2 * record["cost"]["flops"])


def test_an_audit_asks_each_part_at_home_and_says_what_it_spent(finished):
    run = finished.changed([*QUICK, "credit.budget=1"])
    record = credit.audit(run)
    assert record == json.loads(json.dumps(record))
    kept = read_stamped((finished.path / CREDIT).with_name("audit.json"))
    assert {key: kept[key] for key in record} == record
    assert record["rows"] == sum(part["rows"] for part in record["parts"])
    assert [part["number"] for part in record["parts"]] == [0, 1, 2]
    shape = finished.partition.contents.shape
    row = costs.forward_flops(costs.Network(finished.config.expert, shape))
    trained = 3 * row * finished.config.expert.steps * finished.config.expert.batch
    assert record["cost"]["of_one_training"] == pytest.approx(record["cost"]["flops"] / trained)
    assert record["cost"]["flops"] > record["rows"] * row, "draws without a network are counted too"
    positive = [part for part in record["parts"] if part["audited"]["value"] > 0]
    assert sum(part["share"] for part in record["parts"]) == pytest.approx(1.0 if positive else 0.0)


@pytest.mark.thorough
def test_an_audit_asks_for_its_own_base(finished, monkeypatch):
    asked, made = [], ground.ground

    def noted(*given):
        asked.append(given[3:])
        return made(*given)

    monkeypatch.setattr(ground, "ground", noted)
    credit.audit(finished.changed(QUICK))
    credit.audit(finished.changed([*QUICK, "credit.audit_base='start'"]))
    assert asked == [("moments",), ("start",)]


@pytest.mark.thorough
def test_an_audit_is_of_the_same_values_as_the_whole_game(finished):
    """Within the errors of both; and the same question has the same answer."""
    run = finished.changed(["credit.num=600", "credit.traced=0", "credit.clip=1e9", "credit.budget=1e6"])
    audited = [part["audited"] for part in credit.audit(run)["parts"]]
    for one, again in zip(audited, credit.audit(run)["parts"], strict=True):
        assert one == pytest.approx(again["audited"], rel=1e-9), "the same draws; sums may round differently"
    for one, part in zip(audited, credit.value(run)["parts"], strict=True):
        width = (one["high"] - one["low"]) ** 2 + (part["audited"]["high"] - part["audited"]["low"]) ** 2
        assert abs(one["value"] - part["audited"]["value"]) < 4 / 3.92 * width**0.5


def test_the_table_of_an_audit_says_whether_it_is_known_well_enough(finished):
    record = credit.audit(finished.changed(QUICK))
    text = values.paid_table(record)
    assert len(text.splitlines()) == 1 + 3 + 1
    assert "base: mean and spread of the held-out samples" in text
    sure = [{**part, "relative_error": 0.01} for part in record["parts"]]
    assert "all are known as well as was wanted (3 %)" in values.paid_table({**record, "parts": sure})
    nobody = {**record["parts"][0], "relative_error": None}
    text = values.paid_table({**record, "parts": [nobody, *sure[1:]]})
    assert "unknown" in text and "not all are known" in text


def test_samples_are_traced_one_by_one(finished):
    run = finished.changed(QUICK)
    x_0 = torch.zeros(2, 1, 28, 28)
    traced = credit.trace(run, x_0)
    assert len(traced) == 2
    for one in traced:
        assert len(one["posterior"]) == 3
        assert one["expert"] == max(range(3), key=lambda k: one["posterior"][k])
        assert [len(part) for part in one["nearest"]] == [1, 1, 1]
        assert one["sentence"] == SENTENCE


def test_the_runs_own_samples_are_traced_without_being_told_who_made_them(finished):
    run = finished.changed([*QUICK, "credit.traced=2"])
    assert credit.own(run) == [], "there are none yet"
    sample.sample(run, run.samples.path, own=True, num=3)
    own = credit.value(run)["samples"]
    record = read_stamped(run.samples.path / "samples.json")
    assert [one["made_by"] for one in own] == record["experts"][:2]
    x_0 = torch.from_numpy(np.load(run.samples.path / "samples.npy")[:2].copy())
    assert [one["posterior"] for one in own] == [one["posterior"] for one in credit.trace(run, x_0)]
    assert credit.own(run.changed(["credit.traced=0"])) == []


def test_after_values_a_picture_says_how_its_price_is_shared(finished, record, tmp_path):
    Image.new("L", (28, 28), 40).save(tmp_path / "bare.png")
    traced = credit.trace_file(finished.changed(QUICK), tmp_path / "bare.png")
    audited = [max(0.0, part["audited"]["value"]) for part in record["parts"]]
    assert sum(traced["royalties"]) == pytest.approx(1.0 if any(audited) else 0.0)
    assert all(share == 0 for share, value in zip(traced["royalties"], audited, strict=True) if not value)


def test_a_picture_is_traced_beside_what_it_says_of_itself(finished, tmp_path):
    run, out = finished.changed(QUICK), tmp_path / "out"
    sample.sample(finished, out, own=True, num=1)
    path = out / gallery.picture_name(0)
    traced = credit.trace_file(run, path)
    assert traced["claims"]["seed"] == "0"
    text = credit.table(traced)
    assert "it says of itself: seed 0, index 0" in text
    assert SENTENCE in text
    assert traced["nearest"][2][0]["id"][:12] in text
    assert len(text.splitlines()) == 1 + 3 + 2


def test_where_the_data_are_not_at_hand_the_rest_is_told(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "nearest", lambda *asked: None)
    traced = credit.trace(finished.changed(QUICK), torch.zeros(1, 1, 28, 28))[0]
    assert traced["nearest"] is None
    assert "expert 1" in credit.table({**traced, "claims": {}, "royalties": None})


def test_progress_is_told(finished):
    told: list[tuple[str, int, int]] = []
    credit.value(finished.changed(QUICK), lambda *count: told.append(count))
    assert told[-1] == ("noisy samples", 96, 96)


def test_other_sections_are_not_this_commands_business(finished):
    from atoll.errors import ConfigError

    with pytest.raises(ConfigError, match=r"\[evaluate\], \[sample\] or \[credit\] alone"):
        finished.changed(["expert.steps=3"])
    assert isinstance(finished.changed(QUICK), Run)
