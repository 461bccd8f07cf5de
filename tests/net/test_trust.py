"""Real trainings by workers that nobody trusts: a lie is found and not in the model; a loss is got over."""

import threading

import pytest

from atoll.net import audit, filing, host, ledger, restore, settling
from atoll.net.audit import Asked
from atoll.net.home import RESOLVED
from atoll.net.policing import Rules
from atoll.net.sources import open_source
from atoll.net.tables import RecordRow, SubmissionRow, VerdictRow
from atoll.net.verification import weigh
from atoll.net.verification.policy import AuditPolicy
from atoll.net.weighing import Scales
from atoll.runs import read_json, write_json
from atoll.runs.contributors import read_contributors
from tests.net.joined import CHOICES, inline, lent, served, work_on

CALM = AuditPolicy(second=0.0, canaries=1e-9, patience=2.0, everywhere=0.0)
POLICED = host.Choices(
    **{**vars(CHOICES), "audits": True, "weighs": False, "rules": Rules(CALM, period=0.1, rounds=1 << 15)}
)
ALONE = threading.Lock()
"""Trainings of one process know one segment at a time."""


@pytest.fixture
def jobs(recorded):
    """Trainings and audits in earnest, everything else as it was recorded."""

    def start(held, home, limits):
        if held.offer.unit.role not in ("train", "audit"):
            return recorded(held, home, limits)
        with ALONE:
            return inline(held, home, limits)

    return start


def lying(start, done):
    """The same, but experts are trained at twice the learning rate."""

    def false(held, home, limits):
        if held.offer.unit.role == "train":
            tree = read_json(held.folder / RESOLVED)
            tree["expert"]["lr"] *= 2
            tree["router"]["lr"] *= 2
            write_json(held.folder / RESOLVED, tree)
            done.append(held.offer.unit.name)
        return start(held, home, limits)

    return false


def weighed_here(place, arguments):
    """The scales in this process."""
    with ALONE:
        return weigh.main(list(arguments)) == 0


def rows(hosted, table, **where):
    with hosted.coordinator.database.reading() as session:
        return session.query(table).filter_by(**where).all()


def together(*joinings):
    threads = [threading.Thread(target=work_on, args=(one,)) for one in joinings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def has_the_same_networks(hosted, recorded):
    """Whatever is made by training has the bits of the run that one process made."""
    with hosted.coordinator.database.reading() as session:
        there = {path: file.sha256 for path, file in filing.table_of(session).items()}
    ours = {path: file.sha256 for path, file in recorded.table.items() if path.endswith(".safetensors")}
    assert len(ours) >= 8
    return {path: there.get(path) for path in ours} == ours


@pytest.mark.slow
@pytest.mark.thorough
def test_a_liar_is_found_out_and_the_model_is_the_honest_one(run_of_units, recorded, tmp_path, jobs):
    with served(run_of_units, POLICED) as (hosted, url):
        hosted.coordinator.judge.scales = Scales(hosted.run, weighed_here)
        done: list[str] = []
        liar = lent(url, tmp_path / "liar", start=lying(jobs, done))
        while not done:
            work_on(liar, once=True)
        together(*(lent(url, tmp_path / name, start=jobs) for name in ("ann", "bob")))
        assert hosted.coordinator.done and has_the_same_networks(hosted, recorded)
        (false,) = [
            row for row in rows(hosted, SubmissionRow, state="rejected") if row.reason.startswith("replay")
        ]
        assert [row.hard for row in rows(hosted, RecordRow, account=false.account)] == [1]
        hard = [row for row in rows(hosted, VerdictRow, submission=false.id) if row.hard]
        assert len(hard) == 1 and len(hard[0].evidence["verdicts"]) == 2
        differences = [
            row.evidence["relative"] for row in rows(hosted, VerdictRow, verdict="fail", hard=False)
        ]
        assert len(differences) >= 2 and min(differences) > 0.1
        gates = rows(hosted, VerdictRow, check="gate")
        experts = [row for row in gates if row.evidence.get("gate")]
        assert len(experts) >= 3 and len(gates) >= 5, "whatever was trained, and what was false"
        assert all(row.evidence["norm"] > 0 and not row.hard for row in experts)
        hosted.lay_out()
        settling.settle(hosted.coordinator)
        hosted.publisher.publish()
        with hosted.coordinator.database.reading() as session:
            lineage = done[0].split(" @")[0]
            assert ledger.balance(session, false.account, "vested", lineage) == 0
            assert ledger.reconcile(session).holds
        page = audit.audit(open_source(str(run_of_units.path / host.FOLDER / "store")), Asked())
        assert page.holds, page.text
        people = read_contributors(run_of_units.path).people
        assert len(people) >= 2 and sum(one.audits for one in people) >= 4


@pytest.mark.slow
@pytest.mark.thorough
def test_the_database_is_gone_and_the_run_ends_with_the_same_bits(
    run_of_units, recorded, tmp_path, jobs, monkeypatch
):
    """The drill: log, artifacts and keys are all that is left, in the middle of real trainings."""
    with served(run_of_units, POLICED) as (hosted, url):
        ann, bob = (lent(url, tmp_path / name, start=jobs) for name in ("ann", "bob"))
        while not rows(hosted, SubmissionRow, canonical=True, state="accepted") or not rows(
            hosted, VerdictRow, check="replay"
        ):
            together_once(ann, bob)
        hosted.publisher.publish()
        entries = hosted.publisher.publish().size
    network = run_of_units.path / host.FOLDER
    for path in network.glob("coordinator.db*"):
        path.unlink()
    monkeypatch.setenv("ATOLL_RUNS", str(run_of_units.path.parent))
    restored = restore.take_over(str(network / "store"), POLICED)
    with served(restored, POLICED) as (hosted, url):
        assert hosted.publisher.publish().size >= entries
        together(*(lent(url, tmp_path / name, start=jobs) for name in ("ann", "bob")))
        assert hosted.coordinator.done and has_the_same_networks(hosted, recorded)
        hosted.publisher.publish()
        page = audit.audit(open_source(str(run_of_units.path / host.FOLDER / "store")), Asked())
        assert page.holds and not page.forks, page.text


def together_once(*joinings):
    for one in joinings:
        work_on(one, once=True)
