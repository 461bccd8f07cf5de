"""Numbers of an update from two files."""

import json
import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from atoll.net.verification import measured, updates


@pytest.fixture
def states(tmp_path):
    def write(name: str, weights: list[float]):
        path = tmp_path / name
        save_file({"model/w": torch.tensor(weights), "ema/w": torch.zeros(2)}, path)
        return path

    return write


def test_facts_by_hand(states):
    before, after = states("before", [0.0, 1.0]), states("after", [3.0, 1.0])
    facts = measured.facts(before, after, 0.5)
    assert (facts["finite"], facts["changed"], facts["norm"]) == (True, 0.5, 6.0)
    assert math.hypot(*facts["sketch"]) == pytest.approx(3.0)
    assert len(facts["sketch"]) == updates.SKETCH


def test_a_state_that_is_not_finite_is_not_looked_at_further(states):
    facts = measured.facts(states("before", [0.0, 1.0]), states("after", [math.nan, 1.0]))
    assert facts == {"finite": False, "changed": 0.0, "norm": 0.0, "sketch": []}


def test_it_is_a_program(states, tmp_path, capsys):
    before, after = states("before", [0.0, 1.0]), states("after", [3.0, 1.0])
    assert measured.main([str(before), str(after), "1.5"]) == 0
    assert json.loads(capsys.readouterr().out)["norm"] == 2.0
    (tmp_path / "broken").write_bytes(b"no")
    assert measured.main([str(before), str(tmp_path / "broken")]) == 1
    assert "broken" in capsys.readouterr().err
    assert measured.main([]) == 1


def test_the_coordinator_opens_no_tensors():
    names = ["admission", "asking", "bands", "beacon", "bisect", "comparison", "finality", "policy", "quorum"]
    imports = ", ".join(f"atoll.net.verification.{name}" for name in names)
    code = f"import sys, {imports}; print({{'torch', 'numpy', 'pyarrow'}} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
