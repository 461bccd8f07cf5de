"""Numbers of an update from two states."""

import math
import subprocess
import sys

import pytest
import torch

from atoll.net.verification import measured, updates


def state(*weights: float):
    return {"model/w": torch.tensor(weights), "ema/w": torch.zeros(2)}


def test_facts_by_hand():
    facts = measured.facts(state(0.0, 1.0), state(3.0, 1.0), 0.5)
    assert (facts["finite"], facts["changed"], facts["norm"]) == (True, 0.5, 6.0)
    assert math.hypot(*facts["sketch"]) == pytest.approx(3.0)
    assert len(facts["sketch"]) == updates.SKETCH


def test_a_state_that_is_not_finite_is_not_looked_at_further():
    facts = measured.facts(state(0.0, 1.0), state(math.nan, 1.0))
    assert facts == {"finite": False, "changed": 0.0, "norm": 0.0, "sketch": []}


def test_the_coordinator_opens_no_tensors():
    names = ["admission", "asking", "bands", "beacon", "bisect", "comparison", "finality", "policy", "quorum"]
    imports = ", ".join(f"atoll.net.verification.{name}" for name in names)
    code = f"import sys, {imports}; print({{'torch', 'numpy', 'pyarrow'}} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
