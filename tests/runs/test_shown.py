"""What samples, measurements and the page of a run are made from."""

import pytest

from atoll.errors import RunError
from atoll.runs import shown


def test_measurements_are_of_samples_and_of_what_they_are_compared_with(finished):
    samples, measured = shown.samples_from(finished), shown.evaluation_from(finished)
    assert set(samples) == {"sample", "networks"}
    assert {key: measured[key] for key in samples} == samples
    assert measured["data"] == finished.data.digest and measured["partition"] == finished.partition.digest
    assert set(measured) == {*samples, "data", "partition", "evaluate"}


def test_a_page_waits_for_what_it_shows(finished):
    with pytest.raises(RunError, match="samples is not finished"):
        shown.report_from(finished)
