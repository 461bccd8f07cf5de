import json
import time

import pytest

from atoll import config
from benchmarks import busy


def test_a_ratio_is_against_the_mean_of_both_quiet_windows(monkeypatch):
    monkeypatch.setattr(busy, "SPIN", "pass")
    rates = iter([100.0, 60.0, 140.0])
    assert busy.windows(lambda: next(rates)) == {"alone": 120.0, "busy": 60.0, "ratio": 0.5}


def test_a_rate_is_the_sum_of_all_jobs(tmp_path, monkeypatch):
    """Two jobs write lines while the window sleeps: 10 and 20 steps in 2 s, with a batch of 8."""
    (tmp_path / "resolved.json").write_text(json.dumps({"expert": {"batch": 8}}))
    files = [tmp_path / "experts" / name / "metrics.jsonl" for name in ("00", "01")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"step": 5, "time": 100.0}) + "\n")

    def later(seconds):
        if seconds == 7.0:
            for file, steps in zip(files, (10, 20), strict=True):
                with file.open("a") as lines:
                    lines.write(json.dumps({"step": 5 + steps, "time": 102.0}) + "\n")

    monkeypatch.setattr(time, "sleep", later)
    assert busy.rate_of(tmp_path / "experts", 7.0) == pytest.approx((5 + 10) * 8)


@pytest.mark.parametrize("name", busy.SIZES)
def test_recipes_are_recipes(name, tmp_path):
    path = tmp_path / "busy.toml"
    path.write_text(busy.RECIPE.format(**busy.SIZES[name]._asdict()))
    assert config.load(path).expert.width == busy.SIZES[name].width
