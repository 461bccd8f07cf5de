"""A study at work: what is shared is made once, what is finished is never made again."""

import json
import os
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

import pytest

from atoll.evaluate import classifier
from atoll.study import cells as room
from atoll.study import design, results
from atoll.study.cells import Workshop
from atoll.train import jobs
from tests.browser import chromium, look, needs_browser
from tests.conftest import TINY

STUDY = """
name = "small"
question = "Does it work?"
recipe = "tiny.toml"
[set]
evaluate.num = 24
evaluate.reference = 300
evaluate.bootstrap = 3
evaluate.routing = 20
[budget]
samples = [150, 300]
router = 0.1
[axes]
partition.clusters = [2]
sample.strategy = ["ancestral", "top-1"]
seed = [0, 1]
"""


def carry_out(shop, cells):
    for job in room.trainings(shop, cells):
        room.work(shop, cells, job.command[-1])


class Done(NamedTuple):
    shop: Workshop
    cells: list[design.Cell]
    trained: Counter[str]
    after_the_first: dict[str, int]
    """When the cells of the first training were written, noted when it was the only one."""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The study from beginning to end, interrupted once."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(TINY)
    (folder / "study.toml").write_text(STUDY)
    trained: Counter[str] = Counter()
    real = jobs.trained

    def counted(stage, *rest, **others):
        if not stage.done:
            run = next(part for part in stage.path.parents if part.name != "experts")
            trained[f"{run.name}/{stage.path.name}"] += 1
        return real(stage, *rest, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_RUNS", str(folder / "runs"))
        patch.setattr(classifier, "STEPS", 20)
        patch.setattr(jobs, "trained", counted)
        shop = Workshop(design.load(folder / "study.toml"))
        cells = shop.cells()
        room.prepare(shop, cells)
        room.work(shop, cells, room.trainings(shop, cells)[0].command[-1])
        first = {c.id: shop.result(c).stat().st_mtime_ns for c in cells if shop.result(c).is_file()}
        again = Workshop(design.load(folder / "study.toml"))
        carry_out(again, again.cells())
    return Done(shop, cells, trained, first)


def test_what_is_shared_is_made_once(done):
    assert len(done.cells) == 2 * 2 * 2 + 2 * 2
    assert set(done.trained.values()) == {1}
    assert len(done.trained) == 2 * 2 * (2 + 1) + 2 * 2  # two experts and a router, or a monolith
    folders = [entry.name.split("-")[0] for entry in done.shop.shared.iterdir()]
    assert folders.count("data") == 1
    assert folders.count("partition") == 2  # one cluster and two, for all seeds
    assert room.trainings(done.shop, done.cells) == []


def test_a_finished_cell_is_never_made_again(done):
    assert done.after_the_first
    for cell in done.cells:
        if cell.id in done.after_the_first:
            assert done.shop.result(cell).stat().st_mtime_ns == done.after_the_first[cell.id]


def test_another_study_finds_what_this_one_finished(done):
    path = done.shop.study.path.with_name("other.toml")
    path.write_text(STUDY.replace('"small"', '"other"').replace("[0, 1]", "[1]"))
    shop = Workshop(design.load(path))
    shop.shared, shop._data = done.shop.shared, done.shop.data()
    assert room.trainings(shop, shop.cells()) == []
    finer = Workshop(design.load(path, ["evaluate.num=25"]))
    finer.shared, finer._data = done.shop.shared, done.shop.data()
    assert len(room.trainings(finer, finer.cells())) == 4


def test_one_training_less_is_one_job_more(done, tmp_path):
    cell = next(cell for cell in done.cells if not cell.monolith)
    path = done.shop.result(cell)
    kept = path.read_text()
    path.unlink()
    try:
        left = room.trainings(done.shop, done.cells)
        assert [job.command[-1] for job in left] == [cell.training]
        assert left[0].progress()["step"] == left[0].steps
    finally:
        path.write_text(kept)


def test_what_it_leaves_behind(done):
    told = results.write(done.shop, done.cells)
    folder = done.shop.folder
    assert told["finished"] == told["cells"] == 12
    written = json.loads((folder / "study.json").read_text())
    assert [line["monolith"] for line in written["lines"]] == [True] * 2 + [False] * 4
    assert {line["seeds"] for line in written["lines"]} == {2}
    assert len((folder / "study.csv").read_text().splitlines()) == 1 + 12
    table = (folder / "study.md").read_text()
    for text in ("Does it work?", "Fréchet distance, classifier", "final distance", "Rank correlation"):
        assert text in table, text
    rows = {row["strategy"]: row["flops_per_sample"] for row in written["rows"] if not row["monolith"]}
    monolith = next(row for row in written["rows"] if row["monolith"])
    assert rows["ancestral"] == pytest.approx(monolith["flops_per_sample"])
    assert rows["top-1"] > rows["ancestral"]  # it also asks the router
    assert {path.name for path in folder.glob("*.svg")} == {"training.svg", "inference.svg"}


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_likes_its_page(done, width, tmp_path):
    page = results.write(done.shop, done.cells)["report"]
    seen = look(chromium(), done.shop.folder / "report.html", width, tmp_path)
    assert page.endswith("report.html")
    assert seen.complaints == []
    assert seen.broken == 0
    assert seen.drawings == 2 + 3
    assert seen.sticks_out <= 0


@pytest.mark.slow
def test_the_command_in_its_own_processes_and_again(tiny):
    path = tiny.with_name("study.toml")
    path.write_text(STUDY)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atoll", "study", str(path), "--set", "axes.seed=[0]", "--json"]
    command += [
        "--set",
        "launch.at_once=2",
        "--set",
        "budget.samples=[150]",
        "--set",
        'evaluate.features=["pixels"]',
    ]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert told["finished"] == told["cells"] == 3
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == told


def test_experts_go_on_from_a_common_start(done, tmp_path, monkeypatch):
    """It is trained once, before anyone needs it, and experts of different runs begin with its weights."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setenv("ATOLL_RUNS", str(done.shop.root.parent))
    said = ["budget.samples=[300]", "budget.start=[0.4]", "axes.seed=[0]", "name=begun", "evaluate.routing=0"]
    shop = Workshop(design.load(tmp_path / "study.toml", said))
    cells = shop.cells()
    (job,) = room.starts(shop, cells)
    room.work(shop, cells, job.command[-1])
    assert not room.starts(shop, cells)
    carry_out(shop, cells)
    assert all(shop.done(cell) for cell in cells)
    (cell,) = {cell.training: cell for cell in cells if cell.start}.values()
    start = shop.run(cell.start).expert(0)
    for k in range(2):
        assert shop.run(cell).expert(k).record["made_from"]["init"] == start.digest
