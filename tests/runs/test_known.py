"""The record of `prepare` tells all that a recipe is checked and planned by."""

from atoll.config import Facts
from atoll.runs.known import known
from atoll.runs.records import SamplesContents

RECORD = SamplesContents(
    kind="image", dtype="uint8", mean=(127.5,), std=(127.5,), shape=(1, 28, 28), group=8, rows=5
)


def test_the_record_of_prepare_tells_all():
    assert known(RECORD) == Facts((1, 28, 28), 5, 0)
    about = {"class_names": ("a", "b"), "text": {"model": "m", "tokens": 4, "width": 3}}
    told = SamplesContents.model_validate({**RECORD.model_dump(), **about})
    assert known(told) == Facts((1, 28, 28), 5, 2, True, 3)


def test_a_finished_run_is_known(finished):
    facts = known(finished.data.contents)
    assert (facts.shape, facts.rows, facts.classes, facts.text) == ((1, 28, 28), 5000, 10, None)
    assert known(finished.partition.contents).shape == facts.shape
