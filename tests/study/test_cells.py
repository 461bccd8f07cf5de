"""A study at work: what is shared is made once, what is finished is never made again."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from atoll.evaluate import classifier
from atoll.study import cells as room
from atoll.study import design, results
from atoll.study.cells import Workshop
from atoll.train import jobs

STUDY = """
name = "small"
question = "Does it work?"
recipe = "tiny.toml"
[set]
evaluate.num = 24
evaluate.reference = 300
evaluate.bootstrap = 3
[budget]
samples = [300]
router = 0.1
[axes]
partition.clusters = [2]
sample.strategy = ["ancestral", "top-1"]
seed = [0, 1]
"""


@pytest.fixture
def path(tiny, monkeypatch):
    monkeypatch.setattr(classifier, "STEPS", 20)
    path = tiny.with_name("study.toml")
    path.write_text(STUDY)
    return path


@pytest.fixture
def trained(monkeypatch):
    """How often each thing is trained."""
    count: Counter[str] = Counter()
    real = jobs.trained

    def counted(stage, *rest, **others):
        if not stage.done:
            run = next(part for part in stage.path.parents if part.name not in ("experts", "router"))
            count[f"{run.name}/{stage.path.name}"] += 1
        return real(stage, *rest, **others)

    monkeypatch.setattr(jobs, "trained", counted)
    return count


def carry_out(shop, cells):
    for job in room.trainings(shop, cells):
        room.work(shop, cells, job.command[-1])


def test_what_is_shared_is_made_once(path, trained, tmp_path):
    shop = Workshop(design.load(path))
    cells = shop.cells()
    room.prepare(shop, cells)
    assert len(cells) == 2 * 2 + 2
    assert len(room.trainings(shop, cells)) == 2 + 2
    carry_out(shop, cells)
    assert set(trained.values()) == {1}
    assert len(trained) == 2 * (2 + 1) + 2  # for each seed two experts and a router, and a monolith
    folders = [entry.name.split("-")[0] for entry in shop.shared.iterdir()]
    assert folders.count("data") == 1
    assert folders.count("partition") == 2  # one cluster and two, for all seeds
    assert room.trainings(shop, cells) == []


def test_a_finished_cell_is_never_made_again(path, trained):
    shop = Workshop(design.load(path))
    cells = shop.cells()
    first = room.trainings(shop, cells)[0].command[-1]
    room.work(shop, cells, first)
    before = {cell.id: shop.result(cell).stat().st_mtime_ns for cell in cells if shop.result(cell).is_file()}
    assert before
    done = dict(trained)
    carry_out(shop, cells)
    for cell in cells:
        if cell.id in before:
            assert shop.result(cell).stat().st_mtime_ns == before[cell.id]
    assert all(trained[name] == 1 for name in done)
    # another study that shares cells with this one finds them finished
    other = path.with_name("other.toml")
    other.write_text(STUDY.replace('"small"', '"other"').replace("[0, 1]", "[1]"))
    assert room.trainings(Workshop(design.load(other)), Workshop(design.load(other)).cells()) == []


def test_what_it_leaves_behind(path):
    shop = Workshop(design.load(path))
    cells = shop.cells()
    carry_out(shop, cells)
    told = results.write(shop, cells)
    assert told["finished"] == told["cells"] == 6
    written = json.loads((shop.folder / "study.json").read_text())
    assert [line["monolith"] for line in written["lines"]] == [True, False, False]
    assert [line["seeds"] for line in written["lines"]] == [2, 2, 2]
    flops = [line["training_flops"] for line in written["lines"]]
    assert max(flops) / min(flops) < 1.2
    assert len((shop.folder / "study.csv").read_text().splitlines()) == 1 + 6
    table = (shop.folder / "study.md").read_text()
    assert "Does it work?" in table
    assert "Fréchet distance, classifier" in table
    ratio = written["rows"][1]["flops_per_sample"] / written["rows"][0]["flops_per_sample"]
    assert ratio == pytest.approx(1)  # an ancestral sample costs what one of the monolith's does


@pytest.mark.slow
def test_the_command_in_its_own_processes_and_again(path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atoll", "study", str(path), "--set", "axes.seed=[0]"]
    command += ["--set", "launch.at_once=2", "--json"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert told["finished"] == told["cells"] == 3
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == told
