"""The coordinator killed at every named point; started again, nothing is lost and nothing is done twice."""

import os
import signal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.net import keeping, keys, ledger, protocol
from atoll.net.books import Books
from atoll.net.callers import Caller
from atoll.net.database import Database
from atoll.net.filing import table_of
from atoll.net.protocol import Progress, Refusal, Release, Submission
from atoll.net.signing import Signed
from atoll.net.statements import Signer
from atoll.net.tables import SubmissionRow, TaskRow
from tests.clocks import ManualClock
from tests.net.crowds import RUN, PretendedPlan, coordinator, expected, files_of, place, result_of, sha, state
from tests.net.dying import killed
from tests.thorough import some

PLAN = PretendedPlan(trainings=1, steps=20, segment=20, every=10)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
ACCOUNT = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
DEVICE = Ed25519PrivateKey.from_private_bytes(bytes([2]) * 32)
POINTS = [
    *(
        f"{name}.{when}-commit"
        for name in ("join", "lease", "progress", "release", "submit")
        for when in ("before", "after")
    ),
    *(f"{name}.{when}-commit" for name in ("advance", "sweep") for when in ("before", "after")),
    "judge.after-commit",
    "artifacts.piece",
    "artifacts.before-store",
    "artifacts.after-store",
    "artifacts.after-commit",
    "ledger.post.written",
]


def live(url, folder):
    """A coordinator and its one worker, from wherever they are to the end of the run."""
    database = Database(url, patience=5)
    database.create()
    clock = ManualClock()
    clock.time = 1000.0 * len(list(folder.glob("life-*")))
    (folder / f"life-{len(list(folder.glob('life-*')))}").touch()
    here = coordinator(database, folder, PLAN, clock, book=Books(Signer(KEY, RUN)))
    keeping.sweep(here)
    keeping.reconsider(here)
    device = keys.identity(keys.public_hex(DEVICE))
    signed = lambda: Signed(device, os.urandom(12).hex(), clock.date() + 60)  # noqa: E731
    delegation = keys.delegate(ACCOUNT, keys.public_hex(DEVICE), 1.8e9 + 1e6)
    account = here.join(protocol.Join(delegation=delegation), signed()).account

    def caller():
        return Caller(account, device, signed())

    def upload(data):
        for first in range(here.artifacts.received(sha(data), account), len(data), 8):
            here.artifacts.receive(sha(data), account, first, len(data), data[first : first + 8])

    for attempt in range(20):
        offer = here.lease(caller(), protocol.LeaseRequest(attempt=f"turn-{attempt}"))
        if isinstance(offer, Refusal):
            if offer.reason == "finished":
                break
            clock.time += 100_000
            keeping.sweep(here)
            continue
        unit = offer.unit
        with database.reading() as session:
            submitted = session.query(SubmissionRow).filter_by(lease=offer.lease).count()
        if submitted:
            continue
        if attempt == 0:
            data = state(unit.stage, 10)
            upload(data)
            links = (sha(state(unit.stage, 0)), sha(data))
            file = protocol.File(path=f"{place(unit.stage)}/step-10", sha256=sha(data), size=len(data))
            here.progress(
                caller(),
                offer.lease,
                Progress(fence=offer.fence, micro=protocol.Micro(step=10, files=(file,), chain=links)),
            )
            here.release(caller(), offer.lease, Release(fence=offer.fence))
            continue
        result, files = result_of(unit)
        for data in files.values():
            upload(data)
        here.submit(caller(), offer.lease, Submission(fence=offer.fence, result=result))
        keeping.sweep(here)
    keeping.reconsider(here)
    assert here.done
    database.close()


@pytest.mark.parametrize("point", some(POINTS, 7))
def test_killed_at_every_point_and_started_again(database_url, tmp_path, point):
    assert killed(lambda: live(database_url, tmp_path), point) == -signal.SIGKILL, "the point is on the way"
    assert killed(lambda: live(database_url, tmp_path), f"{point}:2") in (0, -signal.SIGKILL)
    live(database_url, tmp_path)
    database = Database(database_url, patience=5)
    here = coordinator(database, tmp_path, PLAN, ManualClock(), book=Books(Signer(KEY, RUN)))
    assert files_of(here) == expected(PLAN)
    with database.writing() as session:
        while ledger.project(session):
            pass
        assert ledger.reconcile(session).holds
        canonical = session.query(SubmissionRow).filter_by(canonical=True).all()
        assert sorted(session.get_one(TaskRow, one.task).key for one in canonical) == [
            "train|expert 0||0",
            "whole|end||0",
        ]
        earned = ledger.balance(session, keys.identity(keys.public_hex(ACCOUNT)), "escrow")
        assert earned == PLAN.price + 5, "credited once"
        assert set(table_of(session)) == set(expected(PLAN))
    database.close()
