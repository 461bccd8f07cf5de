"""A study at work: what is shared is made once, what is finished is never made again."""

import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from atoll.evaluate import classifier
from atoll.launch.job import JobStatus
from atoll.study import cells as room
from atoll.study import design, results
from atoll.study.cells import Workshop
from atoll.train import jobs
from tests import commands
from tests.beforehand import TINY
from tests.browser import chromium, look, needs_browser
from tests.machines import descendants, wait_for

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
        room.work(shop, cells, job.spec.stage)


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
        room.work(shop, cells, room.trainings(shop, cells)[0].spec.stage)
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
        results.write(done.shop, done.cells)
        assert "11 of 12 cells are finished." in (done.shop.folder / "study.md").read_text()
        left = room.trainings(done.shop, done.cells)
        assert [job.spec.stage for job in left] == [cell.training]
        assert JobStatus(left[0]).progress()["step"] == left[0].steps
    finally:
        path.write_text(kept)


@pytest.fixture(scope="module")
def told(done):
    """Its tables and pages, drawn once."""
    return results.write(done.shop, done.cells)


def test_what_it_leaves_behind(done, told):
    folder = done.shop.folder
    assert told["finished"] == told["cells"] == 12
    written = json.loads((folder / "study.json").read_text())
    assert [line["monolith"] for line in written["lines"]] == [True] * 2 + [False] * 4
    assert {line["seeds"] for line in written["lines"]} == {2}
    assert len((folder / "study.csv").read_text().splitlines()) == 1 + 12
    table = (folder / "study.md").read_text()
    for text in ("Does it work?", "Fréchet distance, classifier", "final distance", "| rank correlation |"):
        assert text in table, text
    rows = {row["strategy"]: row["flops_per_sample"] for row in written["rows"] if not row["monolith"]}
    monolith = next(row for row in written["rows"] if row["monolith"])
    assert rows["ancestral"] == pytest.approx(monolith["flops_per_sample"])
    assert rows["top-1"] > rows["ancestral"]  # it also asks the router
    assert {path.stem for path in folder.glob("*.svg")} == {"distances", "training", "inference"}
    assert written["reached"][0]["values"]["sample.strategy"] == "ancestral"
    assert len(written["reached"][0]["each"]) == 2  # seeds
    over = [each["over"] for each in written["entropy_predicts_greedy_loss"]]
    assert over[0] == "all times and checkpoints"
    assert written["entropy_predicts_greedy_loss"][0]["pairs"] == 4 * 10
    assert {name for row in written["routing"] for name in row["times"][0]["intervals"]} >= {"entropy", "own"}


def test_the_time_of_a_training_outlives_an_interruption(done):
    """What was trained before is not trained again, and is still told: cells that are judged later say it."""
    for cell in done.cells:
        seconds = json.loads(done.shop.result(cell).read_text())["seconds"]
        kept = json.loads((done.shop.shared / cell.training / "cells" / "trained.json").read_text())
        assert 0 < seconds["train_cpu"] <= kept["train_cpu"]
        assert 0 < seconds["train"] <= kept["train"]


def test_a_study_without_a_finished_cell_says_so(done, tmp_path):
    shop = Workshop(done.shop.study)
    shop.folder, shop.shared = tmp_path / "none", tmp_path / "shared"
    told = results.write(shop, done.cells)
    assert told["finished"] == 0 < told["cells"]
    assert (tmp_path / "none" / "study.md").read_text().endswith("No cell is finished yet.\n")
    assert "report" not in told


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.thorough
def test_a_browser_likes_its_page(done, told, width, tmp_path):
    seen = look(chromium(), done.shop.folder / "report.html", width, tmp_path)
    assert told["report"].endswith("report.html")
    assert seen.complaints == []
    assert seen.broken == 0
    assert seen.drawings == 3 + 3
    assert seen.pictures == 2 + 4  # a strip of samples for each line
    assert seen.sticks_out <= 0
    if width < 600:  # on a wide screen a table of all numbers may scroll in its card
        assert seen.cut == 0


MIXED = """
name = "mixed"
recipe = "tiny.toml"
[set]
condition.kind = "class"
evaluate.num = 24
evaluate.reference = 300
evaluate.bootstrap = 3
[budget]
samples = [150]
router = 0.1
[axes]
partition.clusters = [2]
expert.override = [[], [{clusters = [0], path = "cosine", prediction = "noise"}]]
sample.strategy = ["top-1"]
sample.steps = [2, 4]
sample.guidance = [1.0, 3.0]
"""


@pytest.mark.thorough
def test_objectives_steps_and_guidance_are_axes(tmp_path, monkeypatch):
    """Each reaches what is trained and sampled, and what a sample costs follows."""
    monkeypatch.setattr(classifier, "STEPS", 20)
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "mixed.toml").write_text(MIXED)
    shop = Workshop(design.load(tmp_path / "mixed.toml"))
    cells = shop.cells()
    assert len(room.trainings(shop, cells)) == 3  # a monolith, eight cells of two mixes of objectives
    carry_out(shop, cells)
    results.write(shop, cells)
    rows = json.loads((shop.folder / "study.json").read_text())["rows"]
    assert len(rows) == 4 + 8
    assert len({row["features"]["classifier"]["frechet"]["value"] for row in rows}) == 12
    mixed = [row for row in rows if row["values"].get("expert.override")]
    predictions = {
        row["training"]: [
            json.loads((shop.shared / row["training"] / "experts" / k / "config.json").read_text())
            for k in ("00", "01")
        ]
        for row in mixed
    }
    (experts,) = predictions.values()
    assert "noise" in json.dumps(experts[0])
    assert "noise" not in json.dumps(experts[1])
    costs = {
        (row["values"]["sample.steps"], row["values"]["sample.guidance"]): row["flops_per_sample"]
        for row in rows
        if row["monolith"]
    }
    assert costs[4, 1.0] == pytest.approx(2 * costs[2, 1.0])
    assert costs[2, 3.0] == pytest.approx(2 * costs[2, 1.0])  # with the class and without
    table = (shop.folder / "study.md").read_text()
    for heading in ("override", "steps", "guidance"):
        assert f"| {heading} |" in table


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
@pytest.mark.thorough
def test_a_killed_study_repeats_nothing_that_was_finished(tiny):
    """Every process of it is killed when the first cell is there; the same command then does the rest."""
    path = tiny.with_name("study.toml")
    path.write_text(STUDY)
    small = ["axes.seed=[0]", "budget.samples=[150]", "launch.at_once=1", 'evaluate.features=["pixels"]']
    command = ["study", path, "--json"]
    command += [part for text in small for part in ("--set", text)]
    shared = tiny.parent / "runs" / "studies" / "shared"

    def finished():
        names = ("*/cells/*.json", "*/experts/*/done.json", "*/router/done.json", "*/data/done.json")
        found = {file: file.stat().st_mtime_ns for name in names for file in shared.glob(name)}
        return {file: when for file, when in found.items() if file.name != "trained.json"}

    study = commands.Command(command)
    wait_for(lambda: list(shared.glob("*/cells/????????????.json")), study)
    for pid in (study.pid, *descendants(study.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    study.wait()
    before = finished()
    cells = [file for file in before if file.parent.name == "cells"]
    again = commands.run(*command)
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert told["finished"] == told["cells"] == 3
    assert 0 < len(cells) < 3
    after = finished()
    assert {file: after[file] for file in before} == before
    assert json.loads(commands.run(*command).stdout) == told, "and all of it once more does nothing"
    assert finished() == after


def test_experts_go_on_from_a_common_start(done, tmp_path, monkeypatch):
    """It is trained once, before anyone needs it; full experts begin with it, adapters belong to it."""
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setenv("ATOLL_RUNS", str(done.shop.root.parent))
    said = ["budget.samples=[300]", "budget.start=[0.4]", "axes.seed=[0]", "name=begun", "evaluate.routing=0"]
    said += ['evaluate.features=["pixels"]', "budget.adapter=[0, 2]"]
    shop = Workshop(design.load(tmp_path / "study.toml", said))
    cells = shop.cells()
    first, *others = room.trainings(shop, cells)
    waiting = [job for job in others if first.name in job.after]
    assert waiting, "experts wait for their start"
    room.work(shop, cells, first.spec.stage)
    assert first.name not in {job.name for job in room.trainings(shop, cells)}
    carry_out(shop, cells)
    assert all(shop.done(cell) for cell in cells)
    begun = {cell.training: cell for cell in cells if cell.start}.values()
    assert {cell.config.expert.adapter is None for cell in begun} == {False, True}
    for cell in begun:
        start = shop.run(cell.start).expert(0)
        for k in range(2):
            assert shop.run(cell).expert(k).record.made_from["init"] == start.digest


def test_experts_begin_as_a_start_that_is_told_their_cluster(done, tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setenv("ATOLL_RUNS", str(done.shop.root.parent))
    said = ["budget.samples=[300]", "budget.start=[0.4]", "axes.seed=[0]", "name=told", "evaluate.routing=0"]
    said += ['evaluate.features=["pixels"]', "start.condition=cluster"]
    shop = Workshop(design.load(tmp_path / "study.toml", said))
    cells = shop.cells()
    carry_out(shop, cells)
    assert all(shop.done(cell) for cell in cells)
    cell = next(cell for cell in cells if cell.start)
    start, run = shop.run(cell.start).start, shop.run(cell)
    assert start.contents.clusters == tuple(run.cluster(k).digest for k in range(2))
    assert not shop.run(cell.start).expert(0).done, "of its run nothing but the start is made"
    for k in range(2):
        assert run.expert(k).record.made_from["init"] == start.digest


GROUPED = """
name = "grouped"
recipe = "tiny.toml"
[set]
data.source = "few.npz"
evaluate.num = 24
evaluate.reference = 300
evaluate.bootstrap = 3
evaluate.features = ["pixels"]
[budget]
samples = [480]
router = 0.1
start = [0.4]
[axes]
partition.clusters = [2]
encode.features = ["pixels", "start"]
"""


@pytest.mark.thorough
def test_clusters_by_the_start_are_made_once_it_is_trained_and_are_paid_for(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(GROUPED.replace("few.npz", str(tmp_path / "few.npz")))
    few = np.random.default_rng(0).integers(0, 256, (1200, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", images=few)
    shop = Workshop(design.load(tmp_path / "study.toml"))
    cells = shop.cells()
    _, pixels, start = sorted(cells, key=lambda cell: (not cell.monolith, str(cell.values)))
    assert pixels.start is not None and start.start is not None
    assert pixels.start.training == start.start.training, "one start for both"
    rows = shop.data().contents.rows
    paid = (pixels.config.expert.steps - start.config.expert.steps) * 2 * start.config.expert.batch
    assert abs(paid - rows / 6) <= 2 * start.config.expert.batch
    room.prepare(shop, cells)
    carry_out(shop, cells)
    assert all(shop.done(cell) for cell in cells)
    features = [shop.partition(cell).contents.features for cell in (pixels, start)]
    assert features == ["pixels", "start"]
