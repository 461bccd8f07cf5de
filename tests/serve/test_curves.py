"""Long trainings are thinned; first and newest lines stay."""

import itertools
import json

from atoll.runs import Follower
from atoll.serve import curves
from atoll.serve.curves import Curve


def write(path, steps, mode="a", **more):
    with path.open(mode) as file:
        file.write(
            "".join(
                json.dumps({"step": step, "time": 100.0 + step, "loss": 1 / step, **more}) + "\n"
                for step in steps
            )
        )


def test_a_short_one_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    curve = Curve(Follower(path))
    assert not curve.look() and curve.columns() == {"step": []} and curve.interval == 0
    write(path, [1, 2, 4], loss_t0_00=3, host="elsewhere", gradient_norm=None)
    assert curve.look() and not curve.look()
    assert curve.columns() == {
        "step": [1, 2, 4],
        "loss": [1, 0.5, 0.25],
        "loss_t0_00": [3, 3, 3],
        "gradient_norm": [None, None, None],
    }
    assert curve.newest["step"] == 4 and curve.interval == 1.5


def test_a_long_one_is_thinned_evenly(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 5001))
    curve = Curve(Follower(path))
    curve.look()
    steps = curve.columns()["step"]
    assert len(steps) <= curves.MOST + 1
    assert steps[0] == 1 and steps[-1] == 5000
    assert len({later - step for step, later in itertools.pairwise(steps[:-1])}) == 1
    write(path, [5001])
    curve.look()
    assert curve.columns()["step"][-1] == 5001 and curve.count == 5001


def test_one_that_is_started_over_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3])
    curve = Curve(Follower(path))
    curve.look()
    write(path, [1], "w")
    assert curve.look()
    assert curve.columns()["step"] == [1] and curve.count == 1
