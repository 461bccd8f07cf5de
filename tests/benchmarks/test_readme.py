"""README's table is what was measured, row by row."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.runs import read_json, write_json
from benchmarks import readme

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(1, len(readme.ROWS) + 1))
def test_every_row_of_the_readme_is_printed_by_its_command(number):
    row = readme.printed(number, read_json(readme.STORED)[number - 1])
    assert f"\n{row}\n" in TEXT
    assert f"`--row {number}`" in row


def test_the_table_has_no_other_rows():
    table = TEXT[TEXT.index(readme.HEAD) :].split("\n\n")[0].splitlines()
    assert len(table) == 2 + len(readme.ROWS)


def test_every_row_says_how_much_it_was_counted_over():
    assert all(any(word in row.basis for word in ("samples", "steps")) for row in readme.ROWS)
    assert all(any(word in row.basis for word in ("seeds", "best of")) for row in readme.ROWS)


def test_the_command_prints_the_row():
    command = [sys.executable, "-m", "benchmarks.readme", "--row", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=readme.ROOT)
    assert f"\n{done.stdout.strip()}\n" in TEXT


def line(monolith, value, seeds=3):
    distance = {"value": value, "low": value - 2.0, "high": value + 2.0, "num": seeds}
    change = None if monolith else {"value": -0.25, "low": -0.3, "high": -0.2, "num": seeds}
    return {"monolith": monolith, "distance": distance, "change": change, "seeds": seeds}


def test_a_study_gives_its_row(tmp_path, monkeypatch):
    """Distances with half of their intervals, and the change from the monolith."""
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path))
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(readme, "run", lambda *command: commands.append(command))
    for name, value in (("start", 40.0), ("start-batch-4", 32.0)):
        write_json(
            tmp_path / "studies" / name / "study.json", {"lines": [line(False, 30.0), line(True, value)]}
        )
    found = readme.measure_start("copy.gz")
    assert found["monolith"] == {"value": 40.0, "interval": 2.0}
    assert found["best monolith"] == {"value": 32.0, "batch": 4, "seeds": 3}
    assert "--set" in commands[1]
    assert "monolith.expert.batch=4" in commands[1]
    assert "data.source=copy.gz" in commands[0]
    text = readme.printed(1, found)
    assert "**30.0 ± 2.0** (25 % lower; 25 % lower than the best that one model reached, 32.0" in text
    assert "3 seeds)" in text


def test_times_are_those_of_one_model(monkeypatch):
    ratios = {
        f"one model, {name} from eight, {num} samples": 0.8
        for name in ("ancestral", "top-1")
        for num in (64, 512)
    }
    monkeypatch.setattr(readme, "run", lambda *_: json.dumps({"ratios": ratios}))
    assert readme.measure_sampling("")["64"] == {"ancestral": 1.25, "top-1": 1.25}
