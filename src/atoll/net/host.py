"""From a recipe to a run that strangers work on, served until it is finished; started again, it goes on.

The coordinator's own folder is `network` in the run's: keys, the database and the artifacts, unless they are
elsewhere. What is published once stays: the manifest is in the database, and another recipe is refused.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import APIRouter, FastAPI
from sqlalchemy import select

import atoll
from atoll.config import Facts, RunConfig, validate
from atoll.errors import ConfigError, RunError
from atoll.net import (
    contributing,
    drawing,
    filing,
    judging,
    keeping,
    keys,
    leasing,
    log,
    policing,
    publishing,
    relocating,
    settling,
    sizing,
    units,
    weighing,
)
from atoll.net.api import create_app
from atoll.net.artifacts import Artifacts
from atoll.net.books import Books
from atoll.net.coordinator import Coordinator, Limits
from atoll.net.crash import crash_point
from atoll.net.database import Database
from atoll.net.keeping import Keeper
from atoll.net.migrating import migrate
from atoll.net.protocol import File, Manifest, SignedManifest, Unit, parse
from atoll.net.shelves import Table, folder_of
from atoll.net.statements import Signer
from atoll.net.tables import Setting
from atoll.net.verification import asking
from atoll.runs import DONE, RESOLVED, Run, graph, stamped, stop_requests, write_json
from atoll.runs.contributors import write_contributors
from atoll.runs.run import differences
from atoll.serve import listening
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import open_store

FOLDER = "network"
"""In a run's folder: what only its coordinator has use for."""
MANIFEST = "manifest"
LONGEST = 30_000
"""Characters of a manifest that the log holds; a longer one is a file, of which it has the digest."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choices:
    """What whoever hosts a run decides."""

    database: str = ""
    store: str = ""
    addresses: tuple[str, ...] = ()
    price: int = 1000
    """Milli-credits per 10^12 FLOPs."""
    every: int = 0
    """Steps between two hashes of a state; 0 for a hundredth of the longest training, at most 100."""
    target: float = 7200.0
    quorum: int = 2
    licence: str = ""
    linger: float = 30.0
    """Seconds for which a finished run is still served, so that workers hear of it."""
    retry: float = 1.0
    """Seconds after which a machine without work may ask again; the more there are, the later."""
    moved: tuple[str, ...] = ()
    """Where the run is served from now on, if no longer here."""
    pulse: float = keeping.EVERY
    terms: leasing.Terms = field(default_factory=leasing.Terms)
    audits: bool | None = None
    """Whether trainings are audited by others; None for wherever two must agree on data as well."""
    rules: policing.Rules = field(default_factory=policing.Rules)

    weighs: bool = True
    """Whether audited trainings are weighed here: torch must be installed, or nothing is found."""

    @property
    def policed(self) -> bool:
        """Whether work is audited."""
        return self.quorum > 1 if self.audits is None else self.audits


class GraphPlan:
    """The graph of stages as a coordinator asks for it."""

    def __init__(self, run: Run, manifest: Manifest, quorum: int, read: Callable[[File], bytes]) -> None:
        self.run, self._manifest, self._quorum, self._read = run, manifest, quorum, read
        self._counted: dict[str, units.Sizes] = {}

    def ready(self, table: Table) -> list[Unit]:
        """All units that can be worked on now."""
        return units.ready(self.run, table, self._read, self.sizes(table))

    def sizes(self, table: Table) -> units.Sizes:
        """How large units are and what they are worth: better known once samples are at rest."""
        record = table.get((self.run.data.path / DONE).relative_to(self.run.path).as_posix())
        key = record.sha256 if record is not None else ""
        if key not in self._counted:
            facts = Facts() if record is None else sizing.facts_of(self._read(record))
            self._counted[key] = sizing.sizes(self.run.config, self._manifest, self._quorum, facts)
        return self._counted[key]

    def finished(self, table: Table) -> bool:
        """Whether every stage is there."""
        return units.finished(self.run, table)

    def shortened(self, unit: Unit, steps: int) -> Unit:
        """A training with fewer steps."""
        return units.shortened(unit, steps)

    def state(self, unit: Unit) -> int:
        """As the plan counts it."""
        sizes = list(self._counted.values())  # what was counted last knows most
        return sizes[-1].states.get(unit.stage, 0) if sizes and unit.role == "train" else 0

    def allows(self, unit: Unit, path: str) -> bool:
        """A unit makes files of its own stage, and says into what it was cut."""
        if unit.role == "audit":
            return path == asking.REPORT
        node = graph.node(self.run, unit.stage)
        own = (f"{folder_of(node)}/", f"{units.UNITS}/{node.kind.name}/", units.cut_file(node))
        return path.startswith(own)


@dataclass
class Hosted:
    """A published run and all that serves it."""

    run: Run
    coordinator: Coordinator
    manifest: SignedManifest
    publisher: log.Publisher
    choices: Choices

    def app(self, *routers: APIRouter) -> FastAPI:
        """The application."""
        return create_app(self.coordinator, self.manifest, *routers)

    def keep(self) -> Keeper:
        """What time does, in a thread of its own; the log is published on the way."""
        return Keeper(self.coordinator, self.choices.pulse, self.keep_books)

    def keep_books(self) -> None:
        """Balances brought forward, what was held long enough paid out, the log published."""
        settling.settle(self.coordinator)
        self.publisher.publish()

    def lay_out(self) -> None:
        """Make the run's folder what `atoll run` would have made it."""
        with self.coordinator.database.reading() as session:
            table = filing.table_of(session)
        files = {path: file.sha256 for path, file in units.folder(table).items()}
        crash_point("host.before-layout")
        self.coordinator.artifacts.lay_out(files, self.run.path)
        write_json(self.run.path / RESOLVED, stamped(self.run.config.model_dump(mode="json")))
        if self.coordinator.done and (listed := contributing.stated(self.coordinator)) is not None:
            write_contributors(self.run.path, listed)
        crash_point("host.after-layout")


@contextlib.contextmanager
def opened(run: Run, choices: Choices, clock: Clock = CLOCK) -> Iterator[Hosted]:
    """Publish a run, or take up one that was published here before."""
    place = run.path / FOLDER
    if choices.policed and not place.exists():
        _ = choices.rules.public  # a beacon that does not answer is told before anything is written
    place.mkdir(parents=True, exist_ok=True)
    database = Database(choices.database or str(place / "coordinator.db"))
    try:
        migrate(database)
        store = open_store(choices.store or str((place / "store").resolve()))
        artifacts = Artifacts(store, place / "scratch", database, clock=clock)
        key, log_key = keys.read_or_make(place / "coordinator.key"), keys.read_or_make(place / "log.key")
        published = publishing.published(run)
        draft = _manifest(published.config, choices, keys.public_hex(key), keys.public_hex(log_key))
        text = _known(database, draft)
        if text is None and choices.policed:
            checks = choices.rules.published(key, clock.date(), choices.target)
            draft = draft.model_copy(update={"policy": {**draft.policy, **checks}})
        if text is None:
            text = _publish(run, draft, published, artifacts, key, clock)
        manifest = parse(Manifest, text.encode())
        signer = Signer(key, manifest.digest)
        here = Run(run.path, published.config)
        coordinator = Coordinator(
            database,
            artifacts,
            GraphPlan(here, manifest, choices.quorum, lambda file: artifacts.read(file.sha256)),
            Books(signer),
            judging.Judge(
                _police(database, manifest, key, clock),
                scales=weighing.Scales(here) if choices.weighs else None,
            ),
            run=manifest.digest,
            terms=choices.terms,
            limits=Limits(retry=choices.retry, target=manifest.target_s),
            clock=clock,
            url=choices.addresses[0] if choices.addresses else "",
        )
        signed = SignedManifest(
            manifest=text,
            signature=key.sign(text.encode()).hex(),
            key=keys.public_hex(key),
            fork=_fork(database),
        )
        if choices.moved:
            relocating.announce(coordinator, key, choices.moved)
        coordinator.moved = relocating.is_elsewhere(database, choices.addresses)
        publisher = log.Publisher(database, store, log_key, f"atoll/{manifest.digest[:16]}")
        yield Hosted(here, coordinator, signed, publisher, choices)
    finally:
        database.close()


def _known(database: Database, draft: Manifest) -> str | None:
    """The manifest that was published before; RunError if it is of another run.

    One of an earlier version may say nothing of settings that came later: they are what they were by default.
    """
    with database.reading() as session:
        row = session.get(Setting, MANIFEST)
    if row is None:
        return None
    manifest = parse(Manifest, str(row.value["text"]).encode())
    earlier = validate(dict(manifest.resolved), "the manifest").model_dump(mode="json")
    if changed := differences(earlier, draft.resolved):
        raise RunError(
            f"another recipe was published with this database (changed: {'; '.join(changed[:4])}); "
            "set it back, or give this run another name"
        )
    return str(row.value["text"])


def _fork(database: Database) -> str:
    """The last statement of a coordinator that went on with another's run, if there is one."""
    newest = select(log.Entry.envelope).where(log.Entry.kind == "fork").order_by(log.Entry.index.desc())
    with database.reading() as session:
        envelope = session.scalars(newest.limit(1)).first()
    return "" if envelope is None else bytes(envelope).decode()


def _police(
    database: Database, manifest: Manifest, key: Ed25519PrivateKey, clock: Clock
) -> policing.Police | None:
    """The checks that the manifest promises; of a fork, with a beacon of its own."""
    with database.reading() as session:
        row = session.get(Setting, policing.BEACON)
    return policing.opened(manifest, key, clock, None if row is None else row.value)


def _publish(
    run: Run,
    draft: Manifest,
    published: publishing.Published,
    artifacts: Artifacts,
    key: Ed25519PrivateKey,
    clock: Clock,
) -> str:
    """Files first, by their digests; then manifest, table and the log's first entry in one transaction."""
    table = units.table_of(run)
    for path, source in published.files.items():
        described = units.described(source, source.parent)
        if described is None:
            raise ConfigError(f"{source} is hidden or gone; give another data.source")
        table[path] = described.model_copy(update={"path": path})
    for path, file in table.items():
        if artifacts.size(file.sha256) is None:
            artifacts.add(published.files.get(path, run.path / path), file.sha256)
            crash_point("publish.file")
    facts = graph.resolve("atoll.data.look:known")(run, source=True)
    inputs = tuple(table[path] for path in sorted(table))
    size = sizing.download(published.config, facts)
    manifest = draft.model_copy(update={"inputs": inputs, "download": size})
    text = manifest.model_dump_json()
    stated = {"manifest": json.loads(text)}
    if len(text) > LONGEST:
        stated = {"manifest": None, "digest": manifest.digest, "file": artifacts.write(text.encode())}
    crash_point("publish.before-commit")
    now = clock.date()
    with artifacts.database.writing() as session:
        session.add(Setting(name=MANIFEST, value={"text": text}))
        filing.add_files(session, table)
        Books(Signer(key, manifest.digest)).note(session, "manifest", stated, now)
    crash_point("publish.after-commit")
    return text


def _manifest(config: RunConfig, choices: Choices, key: str, log_key: str) -> Manifest:
    run = Run(Path(config.name), config)
    return Manifest(
        name=config.name,
        resolved=config.model_dump(mode="json"),
        graph=tuple(node.name for node in units.stages(run)),
        precision=config.expert.precision,
        price=choices.price,
        target_s=choices.target,
        every=choices.every or sizing.every(config),
        addresses=choices.addresses,
        licence=choices.licence,
        coordinator=key,
        log=log_key,
        policy={"quorum": choices.quorum},
        atoll=atoll.__version__,
    )


def serve(
    run: Run,
    choices: Choices,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    tls: tuple[str, str] | None = None,
    ready: Callable[[str, Hosted], None] = lambda url, hosted: None,
    look: Callable[[], None] = lambda: None,
    pages: tuple[APIRouter, ...] = (),
) -> bool:
    """Serve a run until it is finished, or until somebody stops it; whether it is finished.

    `look` is called now and then while it is served.
    """
    with opened(run, choices) as hosted, stop_requests():  # what uvicorn was told, it tells again at its end
        server = listening.Server(hosted.app(*pages), host, port, lambda url: ready(url, hosted))
        if tls is not None:
            server.config.ssl_certfile, server.config.ssl_keyfile = tls
        keeper = hosted.keep()
        if hosted.coordinator.moved:
            hosted.publisher.publish()
        else:
            keeper.tick()
            keeper.start()
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(hosted, server, ended, look), daemon=True)
        watcher.start()
        try:
            server.run()
        finally:
            ended.set()
            watcher.join()
            keeper.stop()
        if not hosted.coordinator.done:
            return False
        look()
        hosted.keep_books()
        hosted.lay_out()
        drawing.draw(hosted.run, hosted.run.path / FOLDER)
        return True


def _watch(
    hosted: Hosted, server: listening.Server, ended: threading.Event, look: Callable[[], None]
) -> None:
    """Let somebody look now and then, and a finished run go after a while."""
    while not ended.wait(0.5):
        look()
        if hosted.coordinator.done:
            hosted.lay_out()
            drawing.draw(hosted.run, hosted.run.path / FOLDER)
            ended.wait(hosted.choices.linger)
            server.should_exit = True
            return
