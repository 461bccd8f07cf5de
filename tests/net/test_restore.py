"""The drill: the database is gone; from log and artifacts the run goes on, and ends with the same bits."""

from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import ConfigError, CorruptError
from atoll.net import audit, filing, judging, ledger, log, notes, protocol, restore, results
from atoll.net import host as hosting
from atoll.net.audit import Asked
from atoll.net.books import Books
from atoll.net.database import Database
from atoll.net.protocol import Manifest
from atoll.net.sources import open_source
from atoll.net.statements import Signer
from atoll.net.tables import TaskRow
from tests.clocks import ManualClock
from tests.net.crowds import Machine, PretendedPlan, coordinator, expected, files_of
from tests.net.past import honest

KEY, LOG, OTHER, OTHER_LOG = (
    Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in range(1, 5)
)
MANIFEST = Manifest(
    name="tiny", resolved={"name": "tiny"}, coordinator=notes.public_hex(KEY), log=notes.public_hex(LOG)
)
ORIGIN = "run.example/log"


class Plan(PretendedPlan):
    """Of the run of this manifest."""

    def ready(self, table):
        return [unit.model_copy(update={"run": MANIFEST.digest}) for unit in super().ready(table)]

    def state(self, unit):
        return 0

    def shortened(self, unit, steps):
        return super().shortened(unit, steps).model_copy(update={"run": MANIFEST.digest})


class Host:
    """A coordinator with its log and ledger, and two machines."""

    def __init__(self, folder, clock, key=KEY, log_key=LOG) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.clock, self.key, self.log_key = folder, clock, key, log_key
        self.database = Database(str(folder / "coordinator.db"))
        self.database.create()
        self.signer = Signer(key, MANIFEST.digest)

    def begin(self) -> None:
        with self.database.writing() as session:
            facts = {"manifest": MANIFEST.model_dump(mode="json")}
            log.append(session, "manifest", facts, self.signer, self.clock.date())
        self.start()

    def start(self) -> None:
        books = Books(self.signer)
        self.here = coordinator(self.database, self.folder, Plan(shares=1), self.clock, book=books)
        self.here.run = MANIFEST.digest
        store = self.here.artifacts.store
        self.publisher = log.Publisher(self.database, store, self.log_key, ORIGIN)

    def restore(self, source: str) -> int:
        """Everything but the manifest's key comes from there."""
        self.start_empty()
        return restore.rebuild(
            restore.read(open_source(source)), open_source(source), self.here.artifacts, self.signer,
            notes.public_hex(self.log_key), ORIGIN, self.clock.date(),
        )  # fmt: skip

    def start_empty(self) -> None:
        from atoll.net.artifacts import Artifacts
        from atoll.storage.store import open_store

        self.here = type("Empty", (), {})()
        store = open_store(str(self.folder / "store"))
        self.here.artifacts = Artifacts(store, self.folder / "scratch", self.database, clock=self.clock)

    def totals(self) -> Counter[str]:
        with self.database.reading() as session:
            assert ledger.reconcile(session).holds
            accounts = {row.account for row in session.query(ledger.Posting)}
            return Counter(
                {name: ledger.balance(session, name, "escrow") for name in accounts - {"treasury"}}
            )


def machines(host: Host) -> list[Machine]:
    people = [Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (11, 12)]
    return [Machine.of(host.here, account=one) for one in people]


def again(machine: Machine, host: Host) -> Machine:
    """The same machine at another coordinator, which must know it without a word."""
    other = Machine.of(host.here, account=Ed25519PrivateKey.generate())
    other.account, other.device, other.id, other.name = (
        machine.account,
        machine.device,
        machine.id,
        machine.name,
    )
    return other


def finish(workers: list[Machine]) -> None:
    for _ in range(40):
        if all(isinstance(one.work(), protocol.Refusal) for one in workers):
            return
    pytest.fail("the run does not end")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[dict[str, bytes], int]:
    """Files and credit of a run whose coordinator stayed."""
    host = Host(tmp_path_factory.mktemp("whole"), ManualClock())
    host.begin()
    finish(machines(host))
    host.database.close()
    return files_of(host.here), sum(host.totals().values())


@pytest.mark.parametrize(
    ("done", "fork", "long"), [(0, False, 100), (2, True, 1), (3, False, 1), (5, True, 100)]
)
@pytest.mark.thorough(done=(3, 5))
def test_a_run_goes_on_from_log_and_artifacts_alone(done, fork, long, tmp_path, undisturbed, monkeypatch):
    """Also where lists are longer than an entry of the log may be, and lie in files of their own."""
    monkeypatch.setattr(results, "LONG", long)
    clock = ManualClock()
    first = Host(tmp_path / "first", clock)
    first.begin()
    workers = machines(first)
    for number in range(done):
        workers[number % 2].work()
    offer = workers[0].lease()  # somebody is at work when it is lost
    before = first.publisher.publish()
    first.database.close()
    keys = (OTHER, OTHER_LOG) if fork else (KEY, LOG)
    second = Host(tmp_path / "second", clock, *keys)
    assert second.restore(str(tmp_path / "first" / "store")) == before.size + fork
    second.start()
    known = [again(one, second) for one in workers]
    if isinstance(offer, protocol.LeaseOffer):
        assert known[0].submit(offer).status_code == 200
    finish(known)
    assert files_of(second.here) == undisturbed[0] == expected(second.here.plan)
    assert sum(second.totals().values()) == undisturbed[1]
    second.publisher.publish()
    page = audit.audit(open_source(str(tmp_path / "second" / "store")), Asked(now=1e12, remembered=before))
    assert page.holds, page.text
    assert bool(page.forks) is fork
    second.database.close()


def test_a_database_that_has_a_log_is_not_written_over(tmp_path):
    host = Host(tmp_path / "first", ManualClock())
    host.begin()
    host.publisher.publish()
    with pytest.raises(ConfigError, match="has a log already"):
        host.restore(str(tmp_path / "first" / "store"))
    host.database.close()


def test_a_history_that_is_false_is_not_gone_on_from():
    past = honest().publish()
    assert restore.manifest_of(restore.read(past)).name == "tiny"
    past.files["checkpoint"] = past.files["checkpoint"].replace(b"24", b"23")
    with pytest.raises(CorruptError, match="nothing can go on from memory"):
        restore.read(past)


def test_a_file_that_is_gone_is_named(tmp_path):
    host = Host(tmp_path / "first", ManualClock())
    host.begin()
    machines(host)[0].work()
    host.publisher.publish()
    for path in (tmp_path / "first" / "store" / "sha256").iterdir():
        path.unlink()
    second = Host(tmp_path / "second", ManualClock())
    with pytest.raises(CorruptError, match="is missing or damaged; look for a mirror"):
        second.restore(str(tmp_path / "first" / "store"))
    with second.database.reading() as session:
        assert log.size(session) == 0
    for one in (host, second):
        one.database.close()


def test_a_hosted_run_is_taken_over_from_its_store(prepared, tmp_path, monkeypatch):
    """Of a real recipe: the manifest says what the run is, the store has what it begins with."""
    choices = hosting.Choices(quorum=1, every=2)
    with hosting.opened(prepared(), choices) as first:
        first.publisher.publish()
        store = str(first.run.path / "network" / "store")
        judging.advance(first.coordinator)
        with first.coordinator.database.reading() as session:
            before = filing.table_of(session), sorted(row.digest for row in session.query(TaskRow))
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "elsewhere"))
    run = restore.take_over(store, choices)
    assert run.path == tmp_path / "elsewhere" / run.config.name
    assert restore.take_over(store, choices).path == run.path, "asked again, it goes on"
    with hosting.opened(run, choices) as second:
        assert second.coordinator.run == first.coordinator.run
        judging.advance(second.coordinator)
        with second.coordinator.database.reading() as session:
            assert (filing.table_of(session), sorted(row.digest for row in session.query(TaskRow))) == before
        second.publisher.publish()
    page = audit.audit(open_source(str(run.path / "network" / "store")), Asked(now=1e12))
    assert page.holds and page.forks == (1,), page.text


def test_a_run_of_this_name_that_was_made_here_is_left_alone(prepared, tmp_path):
    run = prepared()
    with hosting.opened(run, hosting.Choices(quorum=1)) as first:
        first.publisher.publish()
    (run.path / "network").rename(tmp_path / "network")
    with pytest.raises(ConfigError, match="was made here"):
        restore.take_over(str(tmp_path / "network" / "store"), hosting.Choices(quorum=1))
