"""Tuning: both sides try the same for the same budget, and the study goes on with what each found."""

import pytest

from atoll.config import Facts
from atoll.errors import BudgetError, ConfigError
from atoll.runs import Run, read_json, write_json
from atoll.study import design, results, tuning
from atoll.study.cells import Workshop
from atoll.study.tuning import Setting
from tests.beforehand import TINY

STUDY = """
name = "tuned"
recipe = "tiny.toml"
[set]
evaluate.num = 100
[budget]
samples = [4000, 8000]
router = 0.1
start = [0.5]
[tune]
batch = [4, 8]
lr = [1e-3, 3e-3]
num = 24
[axes]
partition.clusters = [2, 4]
seed = [0, 1]
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(Workshop, "cells", lambda self, progress=None: design.unfold(self.study, FACTS))
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    return design.load(tmp_path / "study.toml")


FACTS = Facts(shape=(1, 28, 28), rows=300)


def pretend(log):
    """Judge trials without training: the monolith is best at (8, 3e-3), experts at (4, 1e-3)."""

    def run(trials):
        for trial in trials:
            wanted = Setting(8, 3e-3) if trial.cell.monolith else Setting(4, 1e-3)
            expert = trial.cell.config.expert
            assert (expert.batch, expert.lr) == trial.setting
            off = (expert.batch != wanted.batch) + 2 * (expert.lr != wanted.lr)
            frechet = {"value": 10.0 + off, "low": None, "high": None}
            write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})
            log.append(trial)

    return run


def test_each_side_has_what_is_best_for_it(study):
    log: list[tuning.Trial] = []
    best, records = tuning.tuned(study, pretend(log))
    monolith, ensemble = (
        next(cell for cell in design.unfold(best, FACTS) if cell.monolith == alone) for alone in (True, False)
    )
    assert (monolith.config.expert.batch, monolith.config.expert.lr) == (8, 3e-3)
    assert (ensemble.config.expert.batch, ensemble.config.expert.lr) == (4, 1e-3)
    assert ensemble.start is not None
    start = ensemble.start.config.expert
    assert (start.batch, start.lr) == (8, 3e-3), "a start is a monolith with less"
    assert [record["side"] for record in records] == ["monolith", "experts"]
    assert [(record["batch"], record["lr"]) for record in records] == [(8, 3e-3), (4, 1e-3)]


def test_both_sides_cost_the_same_and_all_of_it_is_counted(study):
    log: list[tuning.Trial] = []
    _, records = tuning.tuned(study, pretend(log))
    monolith, experts = records
    assert [row["samples"] for row in monolith["tried"]] == [4000] * 4 + [8000] * 2
    assert [row["samples"] for row in experts["tried"]] == [4000] * 4 + [8000] * 2
    assert experts["flops"] == pytest.approx(monolith["flops"], rel=0.03)
    by_side = {True: 0.0, False: 0.0}
    for trial in log:
        by_side[trial.cell.monolith] += trial.cell.flops
    assert (by_side[True], by_side[False]) == (monolith["flops"], experts["flops"])


def test_trials_are_of_the_first_of_every_axis_and_judged_on_fewer_samples(study):
    trial = tuning.trial(study, "experts", Setting(4, 1e-3), 2000)
    assert trial.cell.config.partition.clusters == 2
    assert trial.cell.config.evaluate.num == 24
    assert {cell.values["seed"] for cell in trial.cells} == {0}
    assert {cell.values["budget"] for cell in trial.cells} == {2000}
    again = design.Study.read(_written(trial))
    assert trial.cell.training in {cell.training for cell in design.unfold(again, FACTS)}, "a worker finds it"


def test_a_search_may_have_a_seed_that_is_not_reported(study):
    tune = study.config.tune.model_copy(update={"seed": 7})
    apart = design.Study(study.config.model_copy(update={"tune": tune}), study.base, study.path)
    trial = tuning.trial(apart, "experts", Setting(4, 1e-3), 2000)
    assert {cell.config.seed for cell in trial.cells} == {7}
    assert trial.cell.config.sample.seed == 7
    log: list[tuning.Trial] = []
    best, _ = tuning.tuned(apart, pretend(log))
    assert {each.cell.config.seed for each in log} == {7}
    assert {cell.config.seed for cell in design.unfold(best, FACTS)} == {0, 1}


def _written(trial):
    path = trial.shop.folder / "resolved.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trial.shop.study.resolved())
    return path


def test_a_start_that_trials_share_is_one_job_before_them(study, monkeypatch, tmp_path):
    known = tuning.given(study, "monolith", Setting(8, 3e-3))
    trials = [tuning.trial(known, "experts", Setting(batch, 1e-3), 2000) for batch in (4, 8)]
    monkeypatch.setattr(Workshop, "run", lambda self, cell: Run(tmp_path / cell.training, cell.config))
    jobs = tuning.jobs(trials)
    assert len(jobs) == 3
    assert len({job.name for job in jobs}) == 3
    start, *others = jobs
    assert all(job.after == {start.name} for job in others)
    assert ["batch 4, lr 0.001" in job.name for job in others] == [True, False]


def test_a_study_without_tuning_is_as_it_was(study):
    plain = design.Study(study.config.model_copy(update={"tune": None}), study.base, study.path)
    assert tuning.tuned(plain, pretend([])) == (plain, [])


def test_what_was_tried_is_written_beside_the_table(study):
    _, records = tuning.tuned(study, pretend([]))
    shop = Workshop(study)
    results.write(shop, shop.cells(), records)
    text = (shop.folder / "study.md").read_text(encoding="utf-8")
    assert "| monolith | batch 8, lr 0.003 | 4,000 | 10.00 |" in text
    assert "experts: batch 4, lr 0.001 (" in text
    assert read_json(shop.folder / "study.json")["tuning"] == records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("axes.expert.lr=[1e-3]", "expert.lr, which is an axis too"),
        ("expert.batch_of='monolith'", "leave out expert.batch_of"),
        ("axes.partition.clusters=[1, 2]", "begin with more"),
        ("tune.batch=[]", "give both"),
        ("tune.seed=1", "tune.seed 1 is one that is reported"),
        ("tune.clusters=[4]", "partition.clusters, which is an axis too"),
        ("tune.clusters=[1]", "tune.clusters"),
        ("tune.balanced=[true, false]", "tried with tune.features"),
        ("tune.features=['pixles']", "did you mean 'pixels'"),
        ("encode.features=pixles", "did you mean 'pixels'"),
        (
            ["tune.features=['pixels']", "axes.encode.features=['pixels']"],
            "encode.features, which is an axis",
        ),
        (["tune.features=['start']", "budget.start=[0.0]"], "give budget.start a share"),
        (["tune.features=['start']", "start.condition='cluster'"], "needs clusters before the start"),
    ],
)
def test_what_cannot_be_tuned_is_refused(study, change, said):
    with pytest.raises(ConfigError, match=said):
        design.load(study.path, [change] if isinstance(change, str) else change)


NUMBERS = [
    line.replace("batch = [4, 8]", "clusters = [2, 4, 8]")
    for line in STUDY.splitlines()
    if not line.startswith(("lr", "partition.clusters"))
]


def best_are_four(log):
    """Judge trials without training: four experts are best with all of the budget, eight with half of it."""

    def run(trials):
        for trial in trials:
            number = trial.cell.config.partition.clusters
            best = 4 if trial.cell.values["budget"] == 8000 else 8
            frechet = {"value": 10.0 + abs(number - best), "low": None, "high": None}
            write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})
            log.append((trial.cell.values["budget"], number, trial.cell.monolith))

    return run


def test_how_many_experts_is_found_with_what_suits_them(study):
    study.path.write_text("\n".join(NUMBERS))
    log: list[tuple[int, int, bool]] = []
    best, records = tuning.tuned(design.load(study.path), best_are_four(log))
    assert log == [(4000, 2, False), (4000, 4, False), (4000, 8, False), (8000, 8, False), (8000, 4, False)]
    numbers = {cell.config.partition.clusters for cell in design.unfold(best, FACTS)}
    assert numbers == {1, 4}, "a monolith, and as many experts as were found"
    (record,) = records
    assert (record["side"], record["clusters"]) == ("experts", 4)
    assert tuning.table(records).body[-1] == ["experts", "4 experts", "8,000", "10.00"]
    assert "experts: 4 experts (" in tuning.table(records).note


def test_numbers_of_experts_are_tried_after_batch_and_rate(study):
    study.path.write_text("\n".join([line for line in STUDY.splitlines() if "clusters" not in line]))
    both = design.load(study.path, ["tune.clusters=[2, 4]"])
    log: list[tuning.Trial] = []
    _, records = tuning.tuned(both, pretend_both(log))
    assert [record["side"] for record in records] == ["monolith", "experts", "experts"]
    last = [trial for trial in log if isinstance(trial.setting, tuning.Clusters)]
    assert {(trial.cell.config.expert.batch, trial.cell.config.expert.lr) for trial in last} == {(4, 1e-3)}


def pretend_both(log):
    settings = pretend(log)

    def run(trials):
        numbers = [trial for trial in trials if isinstance(trial.setting, tuning.Clusters)]
        settings([trial for trial in trials if trial not in numbers])
        for trial in numbers:
            frechet = {"value": 1.0, "low": None, "high": None}
            write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})
            log.append(trial)

    return run


def test_what_samples_are_grouped_by_is_found_before_how_many_experts(study):
    """The monolith and the start are the same whatever experts are grouped by, and are trained once."""
    study.path.write_text("\n".join([line for line in STUDY.splitlines() if "clusters" not in line]))
    asked = ["tune.features=['pixels','start']", "tune.balanced=[true,false]", "tune.clusters=[2, 4]"]
    alone = [*asked, "tune.batch=[]", "tune.lr=[]"]
    log: list[tuning.Trial] = []

    def run(trials):
        for trial in trials:
            config = trial.cell.config
            off = (config.encode.features != "start") + 2 * config.partition.balanced
            off += abs(config.partition.clusters - 4)
            frechet = {"value": 10.0 + off, "low": None, "high": None}
            write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})
            log.append(trial)

    best, records = tuning.tuned(design.load(study.path, alone), run)
    assert [(type(trial.setting).__name__, trial.cell.values["budget"]) for trial in log] == [
        *[("Grouping", 4000)] * 4,
        *[("Grouping", 8000)] * 2,
        *[("Clusters", 4000)] * 2,
    ]
    assert len({trial.cell.start.training for trial in log[:4] if trial.cell.start is not None}) == 1
    assert [record["side"] for record in records] == ["experts", "experts"]
    found = next(cell.config for cell in design.unfold(best, FACTS) if not cell.monolith)
    assert (found.encode.features, found.partition.balanced, found.partition.clusters) == ("start", False, 4)
    table = tuning.table(records)
    assert ["experts", "by start, as large as they come", "8,000", "11.00"] in table.body
    assert "experts: by start, as large as they come (" in table.note and "experts: 4 experts (" in table.note
    assert {cell.training for cell in design.unfold(best, FACTS) if cell.monolith} == {
        cell.training for cell in design.unfold(design.load(study.path, alone), FACTS) if cell.monolith
    }


def test_what_the_budget_cannot_pay_is_left_out_and_said(study, monkeypatch):
    """What the start sees of 40,000 samples costs 6,667 of training: more than half of 8,000 leaves."""
    study.path.write_text("\n".join([line for line in STUDY.splitlines() if "clusters" not in line]))
    asked = ["tune.features=['pixels','start']", "tune.balanced=[true,false]", "tune.batch=[]", "tune.lr=[]"]
    alone = design.load(study.path, asked)
    many = Facts(shape=FACTS.shape, rows=40_000)
    monkeypatch.setattr(Workshop, "cells", lambda self, progress=None: design.unfold(self.study, many))
    _, (record,) = tuning.tuned(alone, pretend_groupings)
    assert {row["features"] for row in record["tried"]} == {"pixels"}
    assert record["too_dear"] == [{"features": "start", "balanced": each} for each in (True, False)]
    assert "leaves no step: by start, balanced; by start, as large" in tuning.table([record]).note
    only = design.load(study.path, [*asked, "tune.features=['start']"])
    with pytest.raises(BudgetError, match="leaves no step"):
        tuning.tuned(only, pretend_groupings)


def pretend_groupings(trials):
    for trial in trials:
        frechet = {"value": 10.0, "low": None, "high": None}
        write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})


def test_what_an_earlier_search_has_trained_is_not_dropped_by_half_of_a_budget(study):
    """The usual grouping is the worst with half of the budget, and the best with all of it."""
    study.path.write_text("\n".join([line for line in STUDY.splitlines() if "clusters" not in line]))
    both = design.load(study.path, ["tune.features=['pixels','start']", "tune.balanced=[true,false]"])
    log: list[tuning.Trial] = []
    settings = pretend(log)

    def run(trials):
        groupings = [trial for trial in trials if isinstance(trial.setting, tuning.Grouping)]
        settings([trial for trial in trials if trial not in groupings])
        for trial in groupings:
            usual = trial.setting == tuning.Grouping("pixels", True)
            all_of_it = trial.cell.values["budget"] == 8000
            off = float(usual != all_of_it)
            frechet = {"value": 10.0 + off, "low": None, "high": None}
            write_json(trial.shop.result(trial.cell), {"features": {"pixels": {"frechet": frechet}}})
            log.append(trial)

    _, (*_, by_setting, by_grouping) = tuning.tuned(both, run)
    assert (by_grouping["features"], by_grouping["balanced"]) == ("pixels", True)
    assert [row["samples"] for row in by_grouping["tried"]] == [4000] * 4 + [8000] * 3
    new = {each.cell.training: each.cell.flops for each in log if not each.cell.monolith}
    assert by_setting["flops"] + by_grouping["flops"] == pytest.approx(sum(new.values())), "each once"


def test_a_search_for_nothing_is_refused(study):
    study.path.write_text("\n".join(line for line in NUMBERS if "clusters" not in line))
    with pytest.raises(ConfigError, match="nothing to try"):
        design.load(study.path)
