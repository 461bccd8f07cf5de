"""Pointers to the progress of a stage: which one counts, and what is refused at the door."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import CorruptError
from atoll.runs.parsing import validated
from atoll.storage.pointer import Pointer, State, newest, pointer_name, pointers
from atoll.storage.store import open_store

STATE = State(
    step=6, file="step-6.safetensors", sha256="0" * 64, name="experts/00/x/state/step-6.safetensors"
)


@pytest.fixture
def place(tmp_path):
    return open_store(str(tmp_path / "mounted"))


def put(place, attempt, token):
    place.write(pointer_name("experts/00", token), Pointer(attempt=attempt, token=token).encoded())


def test_the_highest_token_counts(place):
    assert newest(place, "experts/00") is None
    for token in (1, 100, 20):
        put(place, "a", token)
    assert newest(place, "experts/00").token == 100
    assert [one.token for one in pointers(place, "experts/00")] == [100, 20, 1]


def test_pointers_of_earlier_attempts_do_not_count(place):
    put(place, "old", 1)
    put(place, "new", 2)
    put(place, "new", 3)
    assert [one.token for one in pointers(place, "experts/00")] == [3, 2]


def test_a_pointer_comes_back_as_it_was():
    pointer = Pointer(attempt="a", token=3, started={"made_from": {}}, states=(STATE,), metrics="a/b.jsonl")
    assert validated(Pointer, json.loads(pointer.encoded()), "here") == pointer
    assert pointer.changed(token=4).states == (STATE,)


def tree(**changes):
    return {**json.loads(Pointer(attempt="a", token=1, states=(STATE,)).encoded()), **changes}


@pytest.mark.parametrize("name", ["../../out", "/etc/passwd", ".ssh/key", "a\\b", ""])
@pytest.mark.parametrize("key", ["file", "name"])
def test_states_elsewhere_are_refused(key, name):
    state = {**STATE.model_dump(), key: name}
    with pytest.raises(CorruptError, match="names a file"):
        validated(Pointer, tree(states=[state]), "here")
    with pytest.raises(CorruptError, match="names a file"):
        validated(Pointer, tree(metrics=name), "here")


@pytest.mark.parametrize(
    "changes",
    [{"token": -1}, {"token": "x"}, {"states": [{}]}, {"states": None}, {"attempt": None}, {"more": 1}],
)
def test_what_is_no_pointer_is_refused_in_words(changes):
    with pytest.raises(CorruptError, match="s3://x is damaged .*--start-over"):
        validated(Pointer, tree(**changes), "s3://x")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_rubbish_is_refused_in_words_that_advise_no_deleting(value):
    with pytest.raises(CorruptError, match="--start-over") as caught:
        validated(Pointer, value, "here")
    assert "delete" not in str(caught.value)
