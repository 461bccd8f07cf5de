"""A training that is killed again and again ends where an undisturbed one does, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.runs import read_lines
from atoll.train import jobs
from tests.train.test_loop import assert_equal, states

SCRIPT = Path(__file__).parent / "script_kill.py"
STEPS = ("expert.steps=200", "expert.log_every=1", "expert.save_every=7")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kills", "code"), [("kill", 20, -9), ("term", 5, 75)])
def test_killed_at_random_moments(prepared, how, kills, code):
    whole, disturbed = prepared(*STEPS, name="whole"), prepared(*STEPS, name="disturbed")
    jobs.expert(whole, 0)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(disturbed.path), how, str(kills)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    codes = json.loads(done.stdout)
    assert codes == [code] * kills + [0]
    assert_equal(states(whole.expert(0).path), states(disturbed.expert(0).path))
    lines = read_lines(disturbed.expert(0).path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 201))
