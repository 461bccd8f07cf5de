"""A machine on trial: a unit twice, checked as the coordinator would, compared, and given back."""

import pytest

from atoll.config import validate
from atoll.net import trial
from atoll.net.protocol import Unit
from atoll.runs import Run, read_json, write_json
from tests.net.crowds import RUN
from tests.net.joined import Quiet, inline, lent, served, work_on


def test_a_unit_is_done_twice_compared_and_given_back(run_of_units, recorded, tmp_path):
    tell = Quiet()
    with served(run_of_units) as (_, url):
        answer = trial.trial(lent(url, tmp_path, tell=tell, start=recorded))
        assert answer["same"] is True and answer["unit"] == "data / cut" and answer["faults"] == []
        assert "data / cut: given back: a trial" in tell.lines
        told = [line for line in tell.lines if line.startswith("data / cut")]  # recovery words may say credit
        assert not any("credit" in line for line in told), "it earns nothing"
        assert answer["sentence"] == "Both times the same bits."
        after = work_on(lent(url, tmp_path, tell=tell, start=recorded), once=True)
        assert after["submitted"] == 1, "what was on trial is open as before"


@pytest.fixture(scope="module")
def under_way(recorded, tmp_path_factory):
    """The address of a run of which everything before the trainings is done; whoever tries gives back."""
    folder, lines = tmp_path_factory.mktemp("under-way"), Quiet()
    run = Run(folder / "tiny", validate(recorded.network.config.model_dump(mode="json"), "a test"))
    run.path.mkdir()
    with served(run) as (_, url):
        for _ in range(20):
            work_on(lent(url, folder / "first", tell=lines, start=recorded), once=True)
            if any(line.startswith("partition: accepted") for line in lines.lines):
                break
        yield url


@pytest.mark.parametrize("kind", ["honest", "unsteady", "false"])
@pytest.mark.thorough(kind="unsteady")
def test_of_a_training_a_while_is_tried_and_checked(under_way, tmp_path, monkeypatch, kind):
    """A machine that computes otherwise each time is found, and so is one whose states fit no chain."""
    monkeypatch.setattr(trial, "SECONDS", 1e-9)  # by its speed: one interval is the least
    times: list[int] = []

    def start(held, home, limits):
        job = inline(held, home, limits)
        times.append(held.offer.unit.last - held.offer.unit.first)
        chain = read_json(held.chain)
        if kind == "unsteady" and len(times) == 2:
            write_json(held.chain, {**chain, str(held.offer.unit.first): "5" * 64})
        if kind == "false":
            write_json(held.chain, {**chain, str(held.offer.unit.last): "5" * 64})
        return job

    answer = trial.trial(lent(under_way, tmp_path / "second", start=start))
    assert times == [2, 2], "steps between two hashes"
    assert answer["same"] is (kind != "unsteady")
    assert bool(answer["faults"]) is (kind == "false")
    assert ("refuse" in answer["sentence"]) is (kind == "false")


def test_only_trainings_are_shortened():
    unit = Unit(run=RUN, name="u", stage="expert 0", role="train", last=1000, every=10, work=1e12)
    assert trial.shorter(unit, 1e9).last == 30, "a thousandth of its FLOPs in a second"
    assert trial.shorter(unit, 0.0) == unit and trial.shorter(unit, 1e15) == unit
    whole = unit.model_copy(update={"role": "whole", "last": 0, "every": 0})
    assert trial.shorter(whole, 1.0) == whole
