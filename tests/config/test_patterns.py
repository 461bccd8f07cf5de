"""How names and strategies are written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.config.patterns import IN_WORDS, NAME, NAMED, STRATEGY


@pytest.mark.parametrize(
    "text",
    ["auto", "full", "oracle", "top-1", "top-16", "sample-3", "threshold-.5", "nucleus-0.95", "nucleus-1"],
)
def test_strategies(text):
    assert re.match(STRATEGY, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "top",
        "top-0",
        "top-01",
        "top-1.5",
        "top--1",
        "threshold-2",
        "nucleus-1.5",
        "Full",
        "full ",
        "xfull",
    ],
)
def test_what_is_none(text):
    assert not re.match(STRATEGY, text)


@given(st.integers(1, 10**6), st.floats(0.0001, 1).map(lambda share: f"{share:.4f}"))
def test_any_number_of_experts_and_any_share(count, share):
    assert re.match(STRATEGY, f"top-{count}")
    assert re.match(STRATEGY, f"nucleus-{share}")


@given(st.text("aZ9._-/\\ \n", max_size=12))
def test_a_name_is_a_folder_of_its_own(text):
    if re.match(NAME, text):
        assert "/" not in text
        assert text[0] not in ".-_"


@pytest.mark.parametrize("text", ["", ".", "..", ".hidden", "-rf", "a/b", "a b", "ä", "a\\b"])
def test_names_that_would_be_something_else_on_a_disk(text):
    assert not re.match(NAME, text)


def test_every_pattern_is_said_in_words_and_what_is_offered_fits():
    assert set(IN_WORDS) == {STRATEGY, NAME}
    for pattern, names in NAMED.items():
        assert all(re.match(pattern, name) for name in names)
