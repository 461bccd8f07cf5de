import pytest

from atoll.errors import RunError
from atoll.runs.records import StageRecord, parse_record
from atoll.runs.seen import FeaturesContents


def test_it_is_known_by_its_kind_and_comes_back_as_it_was():
    record = StageRecord.of({}, {}, FeaturesContents(rows=3, width=32, block=2, time=0.4))
    assert parse_record(record.facts(), "a test").contents == record.contents


def test_a_noise_level_outside_of_0_to_1_is_refused():
    record = StageRecord.of({}, {}, FeaturesContents(rows=3, width=32, block=2, time=0.4)).facts()
    record["contents"]["time"] = 1.5
    with pytest.raises(RunError, match="time"):
        parse_record(record, "a test")
