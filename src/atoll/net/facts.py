"""What each kind of statement says, as a stranger reads it: types that the rules of history are written in.

A coordinator may add facts of its own; those that are named here must be there and be what they are.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from atoll.errors import CorruptError
from atoll.net.protocol import File, Sha256, Unit
from atoll.net.statements import Statement

Check = Literal["admission", "gate", "replay", "quorum", "canary", "trace"]


class Facts(BaseModel):
    """Facts of one statement."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Manifest(Facts):
    """What the run is; the first entry of every log."""

    manifest: dict[str, JsonValue] | None
    """None where it is long."""
    file: Sha256 | None = None
    """Then what it says is in a file."""


class Account(Facts):
    """An account, and a device that may act for it until a time."""

    account: Sha256
    device: str
    expires: float
    delegation: dict[str, JsonValue] | None = None


class Lease(Facts):
    """A unit given to a device for a while."""

    lease: str
    unit: str
    fence: int = Field(ge=1)
    account: Sha256
    device: str
    price: int = Field(ge=0)
    first: int = 0
    last: int = 0
    definition: Unit | None = None
    key: str = ""
    digest: str = ""
    """The unit's."""
    copy_: int | None = Field(None, alias="copy")
    """Which one, of a unit that several accounts must do."""
    about: str = ""
    """The submission that an audit looks at."""

    @property
    def task(self) -> str:
        """What one machine at a time works on: of it each lease has a higher fence."""
        unit = self.definition
        name = self.unit if unit is None else f"{unit.role}|{unit.stage}|{unit.share}|{unit.first}"
        name = self.key or name
        return f"{name}|{self.about}|{self.copy_}"


class Commitment(Facts):
    """A state on the way."""

    lease: str
    unit: str
    fence: int
    step: int = Field(ge=0)
    head: str = ""
    file: File | None = None


class Result(Facts):
    """What a device made of a unit; its hashes are a commitment."""

    submission: str
    lease: str
    unit: str
    fence: int
    account: Sha256
    device: str
    outputs: tuple[File, ...] | Sha256 = ()
    """Or the digest of a file that lists them, where they are many; as of the chain."""
    removed: tuple[str, ...] | Sha256 = ()
    chain: tuple[str, ...] | Sha256 = ()
    digest: str = ""
    """The unit's."""
    seconds: float = 0.0
    late: bool = False
    steps: int = Field(0, ge=0)
    numerics: Any = None
    signed: Any = None
    traces: str = ""
    """The digest of hashes that are nobody's business while it is audited."""


class Beacon(Facts):
    """Randomness that came out after a commitment."""

    submission: str
    round: int = Field(ge=1)
    value: str
    proof: str = ""


class Challenge(Facts):
    """What is asked of a submission, and of whom."""

    submission: str
    first: int
    last: int
    auditor: str | None = None
    due: bool = True
    """Whether it is audited before it is accepted."""
    reason: str = ""
    repeated: bool = False
    interval: int | None = None
    phase: str = "accept"
    owed: str = "interval"
    """What must be replayed before it is final: an interval, or all of it."""
    narrowed: bool = False
    """Whether the interval follows from a dispute and not from the beacon."""
    again: int = 0
    passed: bool = False


class Verdict(Facts):
    """What a check came to."""

    submission: str
    unit: str
    check: Check
    verdict: Literal["pass", "fail", "inconclusive"]
    by: str
    hard: bool = False
    evidence: Any = None
    phase: str = ""
    about: str = ""
    """The auditor's own submission."""


class Decision(Facts):
    """What became of a submission."""

    submission: str
    unit: str
    state: Literal["accepted", "rejected", "final"]
    canonical: bool = True
    """Whether the run goes on from it; late work is paid without."""
    price: int = 0
    verdicts: tuple[int, ...] = ()
    reason: str = ""


class Credit(Facts):
    """An event of the ledger."""

    event: str
    reason: str
    entries: tuple[tuple[str, str, str, int], ...]
    submission: str | None = None


class Epoch(Facts):
    """What parts of the run were found to be worth; paid in the same transaction."""

    epoch: int = Field(ge=0)
    pool: int = Field(ge=0)
    """Milli-credits that it pays at most."""
    seed: int = Field(ge=0)
    """Of the held-out samples, times and noises."""
    values: dict[str, tuple[float, float]]
    """Of each stage: value and standard error, in units of the training loss."""
    networks: dict[str, Sha256]
    """Of each stage: the weights that were valued."""


class Ban(Facts):
    """An account gets no more work, on the ground of verdicts."""

    account: Sha256
    reason: str
    verdicts: tuple[int, ...] = ()


class Outage(Facts):
    """When the coordinator was away."""

    since: float
    until: float


class Fork(Facts):
    """A run goes on elsewhere under another key, from what was published until then."""

    coordinator: str
    log: str
    origin: str
    size: int = Field(ge=1)
    root: Sha256
    beacon: dict[str, JsonValue] | None = None
    """The new coordinator's own, if work is audited."""


class Rotation(Facts):
    """Another key for a role."""

    role: Literal["coordinator", "log"]
    key: str


KINDS: dict[str, type[Facts]] = {
    "manifest": Manifest,
    "account": Account,
    "lease": Lease,
    "commitment": Commitment,
    "result": Result,
    "beacon": Beacon,
    "challenge": Challenge,
    "verdict": Verdict,
    "decision": Decision,
    "credit": Credit,
    "epoch": Epoch,
    "ban": Ban,
    "outage": Outage,
    "rotation": Rotation,
    "fork": Fork,
}


def parsed(statement: Statement) -> Facts | None:
    """The facts of a statement by its kind; None for a kind that no rule is about."""
    kind = KINDS.get(statement.kind)
    if kind is None:
        return None
    try:
        return kind.model_validate(dict(statement.facts))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptError(
            f"a {statement.kind} without what it must say ({place}: {first['msg']:.100})"
        ) from None
