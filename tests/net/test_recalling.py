"""Audits that are under way outlive the coordinator's database: the log says all that is known of them."""

from atoll.net import notes, restore
from atoll.net.artifacts import Artifacts
from atoll.net.database import Database
from atoll.net.sources import open_source
from atoll.net.statements import Signer
from atoll.net.tables import RecordRow, SubmissionRow, TaskRow, VerdictRow
from atoll.storage.store import open_store
from tests.net.policed import CALM, KEY, LOG, ORIGIN, Plan, World


def remembered(world):
    """What is known of checks, apart from where it lies."""
    facts = {}
    for row in world.rows(SubmissionRow):
        audit = {
            name: row.facts.get("audit", {}).get(name)
            for name in ("interval", "phase", "owed", "due", "value")
        }
        applied = row.facts.get("before") if row.state == "accepted" else None
        facts[row.id] = (row.state, audit, row.facts.get("shown"), row.facts.get("final"), applied)
    verdicts = [(row.submission, row.check, row.verdict, row.by, row.phase) for row in world.rows(VerdictRow)]
    records = {(row.account, row.numerics): (row.verified, row.hard) for row in world.rows(RecordRow)}
    return facts, sorted(verdicts), {key: value for key, value in records.items() if any(value)}


def test_draws_verdicts_and_records_come_back_from_the_log(tmp_path):
    (tmp_path / "old").mkdir()
    database = Database(str(tmp_path / "old" / "atoll.db"), patience=5)
    database.create()
    world = World(tmp_path / "old", database, CALM, Plan(trainings=1, steps=60, segment=20))
    ann, bob, liar = world.machine(), world.machine(), world.machine(false=frozenset({20, 30}))
    assert ann.work().state == "checked"
    world.tick()
    ann.show()
    world.tick()
    assert bob.work(roles=("audit",)).state == "accepted"
    assert liar.work().state == "checked"
    world.tick()
    liar.show()
    world.tick()
    assert bob.work(roles=("audit",)).state == "checked", "a second auditor is needed"
    world.publisher.publish()
    known = remembered(world)
    assert any(audit["phase"] == "accept" for _, audit, *_ in known[0].values())
    fresh = Database(str(tmp_path / "new.db"), patience=5)
    fresh.create()
    source = open_source(str(tmp_path / "old" / "store"))
    artifacts = Artifacts(open_store(str(tmp_path / "store")), tmp_path / "scratch", fresh, clock=world.clock)
    signer = Signer(KEY, world.manifest.digest)
    restore.rebuild(
        restore.read(source), source, artifacts, signer, notes.public_hex(LOG), ORIGIN, world.clock.date()
    )
    world.database = fresh
    again = remembered(world)
    waiting = {number for number, (state, *_) in known[0].items() if state == "checked"}
    assert {number: facts for number, facts in again[0].items() if number not in waiting} == {
        number: facts for number, facts in known[0].items() if number not in waiting
    }
    assert all(again[0][number][0] == "received" for number in waiting), "they are looked at once more"
    assert all(again[0][number][1:3] == known[0][number][1:3] for number in waiting)
    assert again[1:] == known[1:]
    assert {row.about for row in world.rows(TaskRow, role="audit")} == {*ann.kept, *liar.kept}
    fresh.close()
    database.close()
