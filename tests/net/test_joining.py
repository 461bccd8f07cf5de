"""From an address to work: a trial that earns nothing, a coordinator that is not the one it was."""

import json

import pytest

from atoll.errors import CorruptError
from atoll.net import joining
from tests.net.joined import Quiet, lent, served, work_on


def test_on_trial_a_unit_is_done_twice_compared_and_given_back(run_of_units, recorded, tmp_path):
    tell = Quiet()
    with served(run_of_units) as (_, url):
        answer = joining.trial(lent(url, tmp_path, tell=tell, start=recorded))
        assert answer["same"] is True and answer["unit"] == "data / cut"
        assert "data / cut: given back: a trial" in tell.lines
        assert joining.sentence(answer) == "Both times the same bits."
        after = work_on(lent(url, tmp_path, tell=tell, start=recorded), once=True)
        assert after["submitted"] == 1, "what was on trial is open as before"
    assert joining.sentence(after).startswith("Ended (once): 1 units handed in, 1 accepted")


def test_an_address_with_another_key_than_before_is_refused(run_of_units, recorded, tmp_path):
    with served(run_of_units) as (_, url):
        work_on(lent(url, tmp_path, start=recorded), once=True)
        known = json.loads((tmp_path / "known.json").read_text())
        (tmp_path / "known.json").write_text(json.dumps({url: "00" * 32}))
        with pytest.raises(CorruptError, match="has another key than before"):
            work_on(lent(url, tmp_path, start=recorded), once=True)
        assert len(known) == 1
