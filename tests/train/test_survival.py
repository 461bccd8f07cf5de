"""A training that is killed again and again ends where an undisturbed one does, bit for bit."""

import json

import pytest

from atoll.runs import read_lines
from atoll.train import jobs
from tests import commands
from tests.thorough import often
from tests.train.test_loop import assert_equal, states

SCRIPT = "tests.train.script_kill"
STEPS = ("expert.steps=80", "expert.log_every=1", "expert.save_every=7")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kills", "code"), [("kill", often(10, 3), -9), ("term", often(4, 1), 75)])
def test_killed_at_random_moments(prepared, how, kills, code):
    whole, disturbed = prepared(*STEPS, name="whole"), prepared(*STEPS, name="disturbed")
    jobs.expert(whole, 0)
    killer = commands.Command([disturbed.path, how, kills], module=SCRIPT)
    said, err = killer.communicate()
    assert killer.returncode == 0, err
    codes = json.loads(said)
    assert codes == [code] * kills + [0]
    assert_equal(states(whole.expert(0).path), states(disturbed.expert(0).path))
    lines = read_lines(disturbed.expert(0).path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 81))
