"""Workers against a real coordinator: whatever fails, kills or lies on the way, the run has the same bits."""

import shutil
import threading
from dataclasses import replace

import pytest
from sqlalchemy import select

from atoll.config import validate
from atoll.evaluate import stage
from atoll.net import filing
from atoll.net.tables import Happening, SubmissionRow, TaskRow
from atoll.runs import Run, evaluations, graph
from tests.net.joined import CHOICES, Faulty, Quiet, inline, lent, same_table, served, work_on
from tests.thorough import some


def test_one_worker_does_it_all_and_says_so(run_of_units, recorded, tmp_path):
    tell = Quiet()
    with served(run_of_units) as (hosted, url):
        joining = lent(url, tmp_path / "home", tell=tell, start=recorded)
        answer = work_on(joining)
        assert same_table(hosted, recorded) > 30
        hosted.lay_out()
    assert answer["ended"] == "finished" and answer["accepted"] == answer["submitted"] == len(recorded.units)
    assert answer["credits"] > 0 and answer["faults"] == 0
    words = "\n".join(tell.lines)
    assert "these 24 words" in words and "licence of the data" in words
    assert "expert 0 @ 0..10: accepted" in words and "thank you" in words
    assert "asking for work" in tell.moments, "at every moment it says what it does"
    laid = Run(run_of_units.path, run_of_units.config)
    assert all(node.stage.done for node in graph.nodes(laid) if not node.kind.page)
    assert laid.samples.record == recorded.run.samples.record


@pytest.mark.thorough
def test_on_both_databases_two_workers_really_do_it(run_of_units, recorded, tmp_path, database_url):
    """The last stages in earnest, in threads of this process; what they make is what was recorded."""
    choices = CHOICES.__class__(**{**vars(CHOICES), "database": database_url})
    done: list[str] = []

    def start(held, home, limits):
        name = held.offer.unit.name
        done.append(name)
        return (
            inline(held, home, limits)
            if name.startswith(("expert 1", "samples"))
            else recorded(held, home, limits)
        )

    with served(run_of_units, choices) as (hosted, url):
        joinings = [lent(url, tmp_path / f"home{k}", start=start) for k in range(2)]
        threads = [threading.Thread(target=work_on, args=(one,)) for one in joinings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table = {path: file for path, file in recorded.table.items() if not path.endswith("metrics.jsonl")}
        _same_but_for_metrics(hosted, table)
    assert len(done) == len(set(done)) == len(recorded.units)


@pytest.mark.thorough
def test_what_is_measured_counts_once_two_accounts_agree(recorded, tmp_path):
    """Of a run that has all but its measurements; both are paid, and the run says what they say."""
    judged = {"at_end": True, "num": 8, "features": ["pixels"], "reference": 64, "bootstrap": 2, "routing": 8}
    tree = {**recorded.network.config.model_dump(mode="json"), "evaluate": judged}
    run = Run(tmp_path / "runs" / "tiny", validate(tree, "a test"))
    shutil.copytree(recorded.run.path, run.path)
    with served(run, replace(CHOICES, quorum=2, audits=False)) as (hosted, url):
        first, second = (lent(url, tmp_path / f"home{number}", start=inline) for number in range(2))
        alone = work_on(first, once=True)
        assert (alone["submitted"], alone["accepted"]) == (1, 0), "one account's word is not enough"
        assert graph.node(hosted.run, "evaluation").stage.path.name == "measured"
        assert "measured/done.json" not in table_of(hosted)
        other = threading.Thread(target=work_on, args=(second,))
        other.start()
        work_on(first)
        other.join()
        hosted.lay_out()
        with hosted.coordinator.database.reading() as session:
            rows = session.scalars(select(SubmissionRow).order_by(SubmissionRow.number)).all()
            roles = {task.id: task.role for task in session.scalars(select(TaskRow))}
    measured = [row for row in rows if roles[row.task] == "evaluate"]
    assert [row.state for row in measured] == ["accepted"] * 2 and len({row.account for row in measured}) == 2
    assert all(row.price for row in measured) and sum(row.canonical for row in measured) == 1
    laid = evaluations.measured(Run(run.path, run.config))
    alone_here = stage.measure(Run(run.path, run.config))
    assert laid.done and alone_here.record == laid.record, "there is nothing left to measure"


def table_of(hosted):
    with hosted.coordinator.database.reading() as session:
        return filing.table_of(session)


def _same_but_for_metrics(hosted, table):
    there = table_of(hosted)
    left = {path: file.sha256 for path, file in there.items() if path in table and "report" not in path}
    assert left == {path: file.sha256 for path, file in table.items() if "report" not in path}


def test_it_says_how_fast_its_line_is_as_measured_and_as_allowed(run_of_units, recorded, tmp_path):
    from atoll.net.client import Rate
    from atoll.net.joining import at_work
    from atoll.net.limits import Limits

    limits = Limits(cpus=1, gpus=0, mbit=50.0)
    with served(run_of_units) as (_, url), at_work(lent(url, tmp_path, limits=limits)) as worker:
        assert [worker._allowed(Rate(mbit)) for mbit in (0.0, 20.0, 80.0)] == [50, 20, 50]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.thorough
def test_any_schedule_of_faults_and_deaths_ends_with_the_same_bits(run_of_units, recorded, tmp_path, seed):
    """Two workers: requests fail before, during or after, processes die, answers are cut or damaged."""
    with served(run_of_units) as (hosted, url):
        ended: dict[str, int] = {}
        happened: list[str] = []
        lock = threading.Lock()

        def live(number):
            for life in range(60):
                faulty = Faulty(seed * 1000 + number * 100 + life, share=0.12)
                joining = lent(url, tmp_path / f"home{number}", start=recorded, transport=faulty)
                joining.clock = Hasty()
                answer = work_on(joining)
                with lock:
                    happened.extend(faulty.happened)
                    ended[answer["ended"]] = ended.get(answer["ended"], 0) + 1
                if answer["ended"] == "finished":
                    return

        threads = [threading.Thread(target=live, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert same_table(hosted, recorded) > 30
        assert ended["finished"] == 2
        assert happened, "nothing happened: the test is none"
        _credited_once(hosted, recorded)


@pytest.mark.parametrize("hours", some([2, -2], 1))
@pytest.mark.thorough
def test_a_clock_that_is_two_hours_wrong_costs_nothing(run_of_units, recorded, tmp_path, hours):
    with served(run_of_units) as (hosted, url):
        joining = lent(url, tmp_path / "home", start=recorded)
        joining.clock = Hasty(hours * 3600.0)
        answer = work_on(joining)
        assert answer["ended"] == "finished" and answer["accepted"] == len(recorded.units)
        assert same_table(hosted, recorded) > 30
        hosted.coordinator.faults.write(hosted.coordinator.database, 0.0)
        with hosted.coordinator.database.reading() as session:
            assert "request_clock" in session.scalars(select(Happening.kind)).all()
    assert {"event": "clock_wrong", "seconds": -hours * 3600} in joining.faults


class Hasty:
    """This machine's clock, or one that goes wrong by so many seconds, but nobody waits long by it."""

    def __init__(self, wrong=0.0):
        from atoll.storage.clock import CLOCK

        self.now, self.wait, self._sleep = CLOCK.now, CLOCK.wait, CLOCK.sleep
        self.date = lambda: CLOCK.date() + wrong

    def sleep(self, seconds):
        self._sleep(min(seconds, 0.02))


def _credited_once(hosted, recorded):
    """Every unit was paid once, whoever handed it in however often."""
    with hosted.coordinator.database.reading() as session:
        rows = session.scalars(select(SubmissionRow)).all()
        accepted = [row for row in rows if row.state == "accepted"]
        assert len(accepted) == len(recorded.units)
