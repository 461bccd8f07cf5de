from typing import Any

import pytest

from atoll.publish import card
from atoll.runs import EVALUATION, write_json
from tests.serving import served

DRAWN = {"experts": [0] * 5}


@pytest.fixture
def run(tmp_path):
    return served(tmp_path / "run", "class")


def test_a_model_of_classes_has_a_tag_and_a_call_of_its_own(run):
    text = card.card(run, "mit", DRAWN)
    head = text.split("---\n")[1]
    assert "- class-conditional-image-generation" in head
    assert "unconditional-image-generation" not in head
    assert 'pipe(class_labels="boot", num_images=16, seed=0)' in text
    assert 'label="boot"' in text
    assert "one of 3 classes, by name or by number from 0: boot, shirt, bag." in text


def test_other_models_are_told_as_what_they_are(tmp_path):
    text = card.card(served(tmp_path / "plain"), "mit", DRAWN)
    assert "pipeline_tag: unconditional-image-generation" in text
    assert "class-conditional" not in text
    assert "## Classes" not in text


def test_a_thousand_classes_are_not_all_named(run):
    record = run.partition.record.facts()
    names = [f"class {index}" for index in range(1000)]
    write_json(
        run.partition.path / "done.json",
        {**record, "contents": {**record["contents"], "class_names": names, "classes": 1000, "labels": None}},
    )
    text = card.card(run, "mit", DRAWN)
    assert "class 99, … and 900 more." in text
    assert "class 100," not in text


def test_distances_are_shown_with_their_intervals(run):
    assert "How near the data" not in card.card(run, "mit", DRAWN)
    number = {"value": 12.34, "low": 11.5, "high": 13.25, "num": 1000}
    space: dict[str, Any] = dict.fromkeys(("frechet", "kernel", "precision", "recall"), number)
    space |= {"floor": {"frechet": 0.5}, "distance": "Fréchet distance, classifier"}
    row = {"num": 1000, "strategy": "top-1", "sample": {}, "features": {"classifier": space}}
    row["copies"] = {**number, "floor": 0.0}
    write_json(run.path / EVALUATION, {"measured": {"top-1, 10 euler steps, 1,000 samples": row}})
    text = card.card(run, "mit", DRAWN)
    assert "Fréchet distance, classifier of samples to real samples" in text
    assert "| top-1, 10 euler steps, 1,000 samples | 1,000 | 12.3 (11.5 to 13.2) | 0.5 |" in text
