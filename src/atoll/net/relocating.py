"""A run that moves: a notice, signed by its coordinator, of the addresses at which it is served from now on.

Whoever serves an old address can serve the notice and cannot change it; it is in the run's log as well.
First it is announced, then the coordinator's folder is copied: the old one writes nothing any more, and there
is one log.
"""

from typing import TYPE_CHECKING, Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from atoll.errors import ConfigError, CorruptError
from atoll.net import keys
from atoll.net.database import Database
from atoll.net.protocol import Hex, Manifest, Message, Seconds, Sha256, Word, parse
from atoll.net.tables import Setting

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

RELOCATION = "relocation"
"""The setting that holds the notice."""
PURPOSE = b"atoll relocation v1\n"
"""Before the signed bytes, so that the signature is good for nothing else."""


class Relocation(Message):
    """A run is served elsewhere from now on."""

    run: Sha256
    addresses: Annotated[tuple[Word, ...], Field(min_length=1, max_length=16)]
    time: Seconds


class SignedRelocation(Message):
    """The exact bytes that were signed, and the signature of the run's coordinator."""

    relocation: Annotated[str, Field(max_length=10_000)]
    signature: Hex
    key: Hex


def notice(database: Database) -> SignedRelocation | None:
    """The notice that a run has moved, if it has."""
    with database.reading() as session:
        row = session.get(Setting, RELOCATION)
    return None if row is None else SignedRelocation.model_validate(row.value)


def is_elsewhere(database: Database, addresses: tuple[str, ...]) -> bool:
    """Whether a run has moved to other addresses than these."""
    signed = notice(database)
    if signed is None:
        return False
    return not set(parse(Relocation, signed.relocation.encode()).addresses) & set(addresses)


def announce(here: "Coordinator", key: Ed25519PrivateKey, addresses: tuple[str, ...]) -> SignedRelocation:
    """Say where a run is served from now on, in its log and to whoever asks; asked again, nothing changes."""
    if not all(one.startswith(("http://", "https://")) for one in addresses):
        raise ConfigError(f"'{', '.join(addresses)}': a run moves to addresses like https://run.example.org")
    before = notice(here.database)
    if before is not None and parse(Relocation, before.relocation.encode()).addresses == addresses:
        return before
    now = here.clock.date()
    text = Relocation(run=here.run, addresses=addresses, time=now).model_dump_json()
    signature = key.sign(PURPOSE + text.encode()).hex()
    signed = SignedRelocation(relocation=text, signature=signature, key=keys.public_hex(key))
    with here.database.writing() as session:
        session.merge(Setting(name=RELOCATION, value=signed.model_dump(mode="json")))
        here.book.note(session, RELOCATION, {"addresses": list(addresses)}, now)
    return signed


def checked(signed: SignedRelocation, manifest: Manifest) -> Relocation:
    """Where a run has moved to, if its own coordinator says so."""
    try:
        key = keys.public_key(manifest.coordinator)
        key.verify(bytes.fromhex(signed.signature), PURPOSE + signed.relocation.encode())
    except Exception:  # whatever the library has to say, it is not signed
        raise CorruptError("the notice that this run moved is not signed by its coordinator") from None
    relocation = parse(Relocation, signed.relocation.encode())
    if relocation.run != manifest.digest:
        raise CorruptError("the notice is of another run")
    return relocation
