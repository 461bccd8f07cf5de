"""Reports are parsed as a stranger's."""

import pytest
from pydantic import ValidationError

from atoll.net.verification.comparison import Comparison, Difference, Report

GOOD = Report(
    replayed="a" * 64,
    committed="b" * 64,
    comparison=Comparison(
        equal=False,
        counts=True,
        kinds={
            "model": Difference(relative=0.1, cosine=0.99, worst=0.2, tensor="model/w"),
            "ema": Difference(relative=0.3, cosine=0.95),
        },
        tensors={"model/w": (0.1, 0.99)},
    ),
)


def test_a_report_is_read_as_it_was_written():
    assert Report.model_validate_json(GOOD.model_dump_json()) == GOOD
    assert (GOOD.comparison.relative, GOOD.comparison.cosine) == (0.3, 0.95)


@pytest.mark.parametrize(
    "change", [{"replayed": "x"}, {"more": 1}, {"comparison": {}}, {"comparison": {"equal": "yes"}}]
)
def test_other_things_are_refused(change):
    with pytest.raises(ValidationError):
        Report.model_validate({**GOOD.model_dump(), **change})
