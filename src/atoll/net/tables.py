"""The coordinator's tables: who is there, what there is to do, who does it, what came of it."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, Session, mapped_column

from atoll.net import leasing
from atoll.net.database import Base
from atoll.net.protocol import Unit

DIGEST = String(64)
TASK_FIELDS = ("state", "fence", "holder", "heard", "deadline", "candidate")


class Setting(Base):
    """What the run is and how far the coordinator is, by name."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[dict[str, Any]]


class Account(Base):
    """Somebody, by the hash of a public key."""

    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    public: Mapped[str] = mapped_column(DIGEST)
    nickname: Mapped[str] = mapped_column(String(120))
    created: Mapped[float]
    number: Mapped[int] = mapped_column(index=True)
    """The how-manieth it is: what pages show of it."""


class Device(Base):
    """A machine that acts for an account."""

    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    account: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    public: Mapped[str] = mapped_column(DIGEST)
    expires: Mapped[float]
    created: Mapped[float]
    seen: Mapped[float] = mapped_column(index=True)
    capabilities: Mapped[dict[str, Any]]
    speed: Mapped[float] = mapped_column(default=0.0)
    """FLOP/s of the work that it has handed in; 0 before any."""
    since: Mapped[float] = mapped_column(default=0.0)
    """When it came, if it has not been away for long since then."""


class Nonce(Base):
    """A request that must not come again while it is good."""

    __tablename__ = "nonces"
    key: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    nonce: Mapped[str] = mapped_column(String(64), primary_key=True)
    expires: Mapped[float] = mapped_column(index=True)


class TaskRow(Base):
    """A unit, or one copy of a unit of which several must agree."""

    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(300))
    """Stage, role, share and first step: of these there is one at a time."""
    copy: Mapped[int]
    unit: Mapped[dict[str, Any]]
    digest: Mapped[str] = mapped_column(DIGEST, index=True)
    name: Mapped[str] = mapped_column(String(120))
    stage: Mapped[str] = mapped_column(String(120))
    role: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    fence: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str] = mapped_column(String(64), default="")
    heard: Mapped[float] = mapped_column(default=0.0)
    deadline: Mapped[float] = mapped_column(default=0.0)
    candidate: Mapped[str] = mapped_column(String(64), default="")
    failed: Mapped[list[Any]] = mapped_column(default=list)
    micro: Mapped[dict[str, Any] | None]
    """The newest state on the way."""
    about: Mapped[str] = mapped_column(String(64), default="", index=True)
    """The submission that an audit looks at."""
    created: Mapped[float]
    memory: Mapped[int] = mapped_column(BigInteger, default=0)
    disk: Mapped[int] = mapped_column(BigInteger, default=0)
    """Bytes of what it reads."""
    gpu: Mapped[bool] = mapped_column(default=False)
    __table_args__ = (UniqueConstraint("key", "copy"), Index("tasks_state", "state", "id"))

    def describe(self, unit: Unit) -> None:
        """Say what there is to do, and what that needs of a machine."""
        self.unit, self.digest, self.name = unit.model_dump(mode="json"), unit.digest, unit.name
        self.stage, self.role, self.gpu, self.memory = unit.stage, unit.role, unit.gpu, unit.memory
        self.disk = sum(file.size for file in unit.inputs)

    @property
    def task(self) -> leasing.Task:
        """What leases know of it."""
        values = {name: getattr(self, name) for name in TASK_FIELDS}
        return leasing.Task(**values, failed=frozenset(self.failed))

    @task.setter
    def task(self, task: leasing.Task) -> None:
        for name in TASK_FIELDS:
            setattr(self, name, getattr(task, name))
        if sorted(task.failed) != self.failed:
            self.failed = sorted(task.failed)


class LeaseRow(Base):
    """One machine's turn at a task."""

    __tablename__ = "leases"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.id"), index=True)
    account: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    fence: Mapped[int]
    unit: Mapped[dict[str, Any]]
    digest: Mapped[str] = mapped_column(DIGEST)
    state: Mapped[str] = mapped_column(String(16))
    """active, submitted, released, lost or ended."""
    created: Mapped[float]
    heard: Mapped[float]
    deadline: Mapped[float]
    expected: Mapped[float]
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    loss: Mapped[float | None]
    head: Mapped[str] = mapped_column(String(128), default="")
    __table_args__ = (Index("leases_device", "device", "state"), Index("leases_account", "account", "state"))


class SubmissionRow(Base):
    """A result under a lease, and what became of it."""

    __tablename__ = "submissions"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(index=True)
    lease: Mapped[str] = mapped_column(ForeignKey("leases.id"), index=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.id"), index=True)
    account: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    result: Mapped[dict[str, Any]]
    digest: Mapped[str] = mapped_column(DIGEST)
    """Of the result."""
    content: Mapped[str] = mapped_column(DIGEST)
    """Of what two machines must agree on."""
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(String(500), default="")
    price: Mapped[int] = mapped_column(BigInteger, default=0)
    late: Mapped[bool]
    canonical: Mapped[bool] = mapped_column(default=False)
    created: Mapped[float]
    decided: Mapped[float | None]
    statement: Mapped[int | None]
    facts: Mapped[dict[str, Any]]
    """What checks found: doubts, the beacon's round, the interval that is audited."""


class VerdictRow(Base):
    """What one check of a submission came to, as the log states it."""

    __tablename__ = "verdicts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    submission: Mapped[str] = mapped_column(ForeignKey("submissions.id"), index=True)
    check: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    """pass, fail or inconclusive."""
    hard: Mapped[bool]
    by: Mapped[str] = mapped_column(String(64), index=True)
    """An account, or the coordinator."""
    phase: Mapped[str] = mapped_column(String(16), default="")
    """Of an auditor's: which audit it belongs to."""
    about: Mapped[str] = mapped_column(String(64), default="")
    """The auditor's own submission."""
    evidence: Mapped[dict[str, Any]]
    statement: Mapped[int | None]
    created: Mapped[float]


class RecordRow(Base):
    """What is known of an account in one numerics class."""

    __tablename__ = "records"
    account: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    numerics: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    verified: Mapped[int] = mapped_column(default=0)
    """Audits passed since the last hard failure."""
    hard: Mapped[int] = mapped_column(default=0)
    """Hard failures."""


class PathRow(Base):
    """A file of the run, as accepted results have made it."""

    __tablename__ = "paths"
    path: Mapped[str] = mapped_column(String(200), primary_key=True)
    sha256: Mapped[str] = mapped_column(DIGEST)
    size: Mapped[int] = mapped_column(BigInteger)


class BlobRow(Base):
    """A file that is in the store, whole and checked."""

    __tablename__ = "blobs"
    sha256: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    account: Mapped[str] = mapped_column(String(64), default="")
    created: Mapped[float]


class Quota(Base):
    """Bytes that an account has sent in an hour."""

    __tablename__ = "quotas"
    account: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)


class Outage(Base):
    """The coordinator was away."""

    __tablename__ = "outages"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    since: Mapped[float]
    until: Mapped[float]


class Happening(Base):
    """Something that a person may want to know of: every fault by its name."""

    __tablename__ = "happenings"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    time: Mapped[float]
    kind: Mapped[str] = mapped_column(String(40), index=True)
    facts: Mapped[dict[str, Any]]


def happened(session: Session, now: float, kind: str, **facts: Any) -> None:
    """Take note of something."""
    session.add(Happening(time=now, kind=kind, facts=facts))
