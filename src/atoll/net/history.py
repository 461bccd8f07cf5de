"""A run's history as anybody can read it: the log, checked against its signature, its tree and its keys.

Nothing that a log says is believed before its root is the signed one. What is wrong is collected, not raised:
whoever audits wants all of it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from atoll.errors import CorruptError
from atoll.net import facts, notes, sources, statements, tiles, tree
from atoll.net.facts import Facts
from atoll.net.notes import Checkpoint
from atoll.net.protocol import digest_of
from atoll.net.sources import Source

Kind = TypeVar("Kind", bound=Facts)


@dataclass(frozen=True)
class Entry:
    """A statement of the log at its place, with its facts parsed."""

    index: int
    at: float
    facts: Facts
    signers: tuple[str, ...]


@dataclass
class History:
    """All that a log says, and what is wrong with how it says it."""

    checkpoint: Checkpoint
    note: bytes
    run: str = ""
    coordinator: str = ""
    """Public key of who may state facts."""
    manifest: Mapping[str, object] = field(default_factory=dict)
    statements: list[Entry] = field(default_factory=list)
    envelopes: list[bytes] = field(default_factory=list)
    """The entries of the log as they are."""
    listed: set[str] = field(default_factory=set)
    """Files of what is too long for an entry: the log is whole only with them."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """By the name of the check that found them."""

    def of(self, kind: type[Kind]) -> Iterator[tuple[Entry, Kind]]:
        """Statements of a kind, in order."""
        for one in self.statements:
            if isinstance(one.facts, kind):
                yield one, one.facts

    def fault(self, check: str, sentence: str) -> None:
        """Take note of what is wrong."""
        self.faults.setdefault(check, []).append(sentence)


def read(source: Source, log_key: str | None = None) -> History:
    """The history at a source, as far as it can be read; the log's key is the manifest's unless given."""
    note = source.log(tiles.CHECKPOINT)
    if note is None:
        raise CorruptError(f"{source.address} has no checkpoint of a log; nothing can be checked")
    entries: list[bytes] = []
    checkpoint = notes.checkpoint_of(note.decode(errors="replace").rpartition("\n\n")[0] + "\n")
    history = History(checkpoint, note)
    reader = tiles.Reader(source.log, checkpoint.size)
    try:
        entries = list(reader.all_entries())
    except CorruptError as error:
        history.fault("entries", str(error))
    _check_tree(history, reader, entries)
    history.envelopes = entries
    _take_manifest(history, entries, source)
    _take_statements(history, entries, source)
    _check_signature(history, log_key)
    return history


def _check_tree(history: History, reader: tiles.Reader, entries: list[bytes]) -> None:
    """The root of what is there must be the signed one; tiles must be those of the entries."""
    leaves = [tree.leaf_hash(entry) for entry in entries]
    if entries and tree.root(leaves) != history.checkpoint.root:
        place = _first_difference(reader, leaves)
        where = f": entry {place} is another one than its tile says" if place is not None else ""
        history.fault("tree", f"the entries of the log have another root than its checkpoint{where}")
    try:
        if reader.root() != history.checkpoint.root:
            history.fault("tree", "the tiles of the log have another root than its checkpoint")
    except CorruptError as error:
        history.fault("tree", str(error))


def _first_difference(reader: tiles.Reader, leaves: list[bytes]) -> int | None:
    try:
        for index, leaf in enumerate(leaves):
            if reader.tile(0, index // tiles.WIDTH)[index % tiles.WIDTH] != leaf:
                return index
    except CorruptError:
        pass
    return None


def _take_manifest(history: History, entries: list[bytes], source: Source) -> None:
    """The first entry says what the run is, and whose word counts; its own signature must be by that key."""
    try:
        statement = statements.opened(entries[0]) if entries else None
        first = None if statement is None else facts.parsed(statement)
        long = first.file if isinstance(first, facts.Manifest) and first.manifest is None else None
        content = sources.read_json(source, long) if long is not None else None
        history.listed |= set() if long is None else {long}
    except CorruptError as error:
        history.fault("manifest", f"entry 0: {error}")
        return
    if statement is None or not isinstance(first, facts.Manifest):
        history.fault("manifest", "the log does not begin with the manifest of a run")
        return
    manifest = content if isinstance(content, dict) else first.manifest or {}
    history.manifest, history.run = manifest, statement.run
    history.coordinator = str(manifest.get("coordinator", ""))
    if digest_of(manifest) != statement.run:
        history.fault("manifest", "the manifest is not the one that the statements are about")
    if history.coordinator not in statement.signers:
        history.fault("manifest", "the manifest is not signed by the coordinator that it names")


def _check_signature(history: History, log_key: str | None) -> None:
    forks = [fork for _, fork in history.of(facts.Fork)]
    key = log_key or (forks[-1].log if forks else str(history.manifest.get("log", "")))
    try:
        notes.opened(history.note, key)
    except CorruptError as error:
        history.fault("checkpoint", str(error))


def _take_statements(history: History, entries: list[bytes], source: Source) -> None:
    keys, frontier = {history.coordinator}, tree.Frontier()
    for index, entry in enumerate(entries):
        root = frontier.root()
        frontier.append(tree.leaf_hash(entry))
        try:
            statement = statements.opened(entry)
            content = _whole(facts.parsed(statement), source, history.listed)
            if isinstance(content, facts.Fork) and (content.size, content.root) == (index, root.hex()):
                keys = {content.coordinator}
            if not keys & set(statement.signers):
                raise CorruptError(
                    f"a statement is signed by {statement.signers[0]:.12}…, who has no say in it"
                )
        except CorruptError as error:
            history.fault("statements", f"entry {index}: {error}")
            continue
        if statement.run != history.run:
            history.fault("statements", f"entry {index} is about another run")
            continue
        if isinstance(content, facts.Rotation) and content.role == "coordinator":
            keys.add(content.key)
        if content is not None:
            history.statements.append(Entry(index, statement.at, content, statement.signers))


def _whole(content: Facts | None, source: Source, listed: set[str]) -> Facts | None:
    """A result with its lists, also where they are long and lie in files of their own, which are noted."""
    if not isinstance(content, facts.Result):
        return content
    lists = {name: getattr(content, name) for name in ("outputs", "removed", "chain")}
    long = {name: sources.read_json(source, one) for name, one in lists.items() if isinstance(one, str)}
    listed |= {one for one in lists.values() if isinstance(one, str)}
    try:
        return facts.Result.model_validate({**content.model_dump(by_alias=True), **long}) if long else content
    except ValidationError:
        raise CorruptError("a result whose lists are none") from None


def consistent(source: Source, before: Checkpoint, now: Checkpoint) -> str | None:
    """Why a checkpoint that somebody remembers is not the beginning of today's log; None where it is."""
    if before.origin != now.origin:
        return f"the log is called {now.origin}, the remembered one {before.origin}"
    if before.size > now.size:
        return f"the log has {now.size} entries and had {before.size}: it has become shorter"
    reader = tiles.Reader(source.log, now.size)
    try:
        proof = reader.consistency(before.size)
    except CorruptError as error:
        return f"nothing shows that the log goes on from what it was: {error}"
    if not tree.check_consistency(before.size, now.size, before.root, now.root, proof):
        return f"the first {before.size} entries are others than they were: history was rewritten or forked"
    return None


def cosigners(history: History, witnesses: Mapping[str, str]) -> Collection[str]:
    """Which of the known witnesses (name: public key) cosigned the checkpoint."""
    return notes.witnesses(history.note, witnesses)
