"""Who asks: devices that act for accounts, known since they joined; each of their requests is good once."""

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import bindparam, case, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from atoll.net import keys
from atoll.net.crash import crash_point
from atoll.net.database import Base, Database
from atoll.net.planning import Book
from atoll.net.protocol import VERSION, Join, Joined
from atoll.net.signing import Signed, Unsigned
from atoll.net.tables import Account, Device

DEVICES, NONCES = (Base.metadata.tables[name] for name in ("devices", "nonces"))
AWAY = 3600.0
"""Seconds of silence after which a device that comes back has been away: twice as long as any must wait."""
CAME = or_(DEVICES.c.seen < bindparam("absent"), DEVICES.c.since == 0)
HEARD = (
    update(DEVICES)
    .where(DEVICES.c.id.in_(bindparam("names", expanding=True)))
    .values(since=case((CAME, bindparam("now")), else_=DEVICES.c.since), seen=bindparam("now"))
)
MOST = 100_000
"""Devices that are remembered at a time."""


@dataclass(frozen=True)
class Caller:
    """A device that acts for an account, by a request that is good once."""

    account: str
    device: str
    signed: Signed


@dataclass(frozen=True)
class Known:
    """A device that has joined, and its key, ready to check signatures with."""

    id: str
    account: str
    key: Ed25519PublicKey
    expires: float


class Devices:
    """Devices by their ids, each looked up once.

    What is remembered cannot become false: an id is the hash of the key, a device never changes its account,
    and a delegation that was good until some day is good until then, whatever other was signed since. One
    that has expired is looked up again, for there may be a newer one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, Known] = {}

    def find(self, key_id: str, now: float) -> Known | None:
        """A device, if it may still act."""
        known = self._known.get(key_id)
        if known is not None and known.expires > now:
            return known
        with self._database.reading() as session:
            row = session.get(Device, key_id)
        if row is None or row.expires <= now:
            return None
        known = Known(row.id, row.account, keys.public_key(row.public), row.expires)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[key_id] = known
        return known


def present(device: Device, now: float) -> None:
    """A device is heard of; after a long silence it has come anew."""
    if now - device.seen > AWAY or not device.since:
        device.since = now
    device.seen = now


def heard(session: Session, names: Sequence[str], now: float) -> None:
    """The same for devices that nobody has looked at, without looking."""
    session.execute(HEARD, {"names": list(names), "now": now, "absent": now - AWAY})


def once(session: Session, signed: Signed) -> None:
    """Remember a request for as long as it is good, so that nobody can send it once more."""
    try:
        session.execute(insert(NONCES).values(key=signed.key_id, nonce=signed.nonce, expires=signed.expires))
    except IntegrityError:
        raise Unsigned("replay", "this request was made already; sign a new one") from None


def join(database: Database, book: Book, now: float, message: Join, signed: Signed) -> Joined:
    """A device introduces itself, or does so again."""
    delegation = message.delegation
    if message.protocol != VERSION:
        raise Unsigned("update", f"this coordinator speaks version {VERSION} of the protocol; update atoll")
    keys.check_delegation(delegation, now)
    answer = Joined(
        account=keys.identity(delegation.account), device=keys.identity(delegation.device), now=now
    )
    if answer.device != signed.key_id:
        raise Unsigned("signature", "a device introduces itself with its own key")
    crash_point("join.before-commit")
    with database.writing() as session:
        once(session, signed)
        _account(session, answer.account, message, now)
        _device(session, book, answer, message, now)
    crash_point("join.after-commit")
    return answer


def _account(session: Session, name: str, message: Join, now: float) -> None:
    if session.get(Account, name) is None:
        number = (session.scalar(select(func.max(Account.number))) or 0) + 1
        public = message.delegation.account
        session.add(Account(id=name, public=public, nickname=message.nickname, created=now, number=number))
        session.flush()


def _device(session: Session, book: Book, answer: Joined, message: Join, now: float) -> None:
    delegation = message.delegation
    row = session.get(Device, answer.device)
    if row is not None:
        if row.account != answer.account:
            raise Unsigned("signature", "this device acts for another account; make it a new key")
        row.expires = delegation.expires
        present(row, now)
        return
    times = {"expires": delegation.expires, "created": now, "seen": now, "since": now}
    session.add(
        Device(id=answer.device, account=answer.account, public=delegation.device, capabilities={}, **times)
    )
    session.flush()
    facts = {"account": answer.account, "device": answer.device, "expires": delegation.expires}
    book.note(session, "account", {**facts, "delegation": delegation.model_dump(mode="json")}, now)
