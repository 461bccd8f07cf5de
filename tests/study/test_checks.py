"""What studies may not ask for: one line each, before anything is made."""

import pytest

from atoll.errors import ConfigError
from atoll.study import design
from tests.study.test_design import STUDY


@pytest.fixture
def study(tiny):
    path = tiny.with_name("study.toml")
    path.write_text(STUDY)
    return path


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("start.condition=class", "it can be 'cluster', or left out"),
        ("budget.adapter=[2]", "for whole networks, not for adapters"),
        ("encode.features=start", "makes them after it"),
        ("axes.encode.features=['pixels', 'start']", "makes them after it"),
    ],
)
def test_what_a_start_cannot_be_told_is_refused(study, said, match):
    with pytest.raises(ConfigError, match=match):
        design.load(study, ["budget.start=[0.5]", "start.condition=cluster", said])
