"""What coordinator and workers say to each other: frozen messages that refuse whatever they do not know.

Everything that a stranger sends is parsed here and nowhere else, from bytes, with every length bounded.
Times are seconds since 1970 on the coordinator's clock; workers only ever compare them with its answers.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from atoll.errors import AtollError, CorruptError
from atoll.runs.files import safe_name

VERSION: Literal[1] = 1
"""Of the protocol; a worker that speaks another one is told to update."""
BODY = 1 << 20
"""Bytes of the longest message; files are not messages."""
MOST_FILES = 4096


class ProtocolError(AtollError):
    """What came is no message of this protocol."""


def _portable(name: str) -> str:
    try:
        return safe_name(name)
    except CorruptError as error:
        raise ValueError(str(error)) from None


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]*$", max_length=128)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_portable)]
"""A file of a run, relative to its folder; nothing hidden, no way out."""
Word = Annotated[str, Field(max_length=120, pattern=r"^[\x20-\x7e]*$")]
Sentence = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Role = Literal["train", "encode", "evaluate", "draw", "audit", "cut", "whole"]
Identifier = Annotated[str, Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")]


class Message(BaseModel):
    """A frozen value that refuses keys it does not know, and numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    def digest(self) -> str:
        """What it is known by: the sha256 of its values in one way of writing them."""
        return digest_of(self.model_dump(mode="json"))


def digest_of(value: Any) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


MessageT = TypeVar("MessageT", bound=Message)


def parse(kind: type[MessageT], body: bytes) -> MessageT:
    """A message from what a stranger sent; what is wrong with it in one line."""
    if len(body) > BODY:
        raise ProtocolError(f"a message has at most {BODY} bytes")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        raise ProtocolError(f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]) from None
    except (ValueError, RecursionError):
        raise ProtocolError("this is not JSON") from None


class File(Message):
    """A file by where it lies in a run's folder and by what is in it."""

    path: Name
    sha256: Sha256
    size: Count


class Numerics(Message):
    """All that decides the last bits of a result besides the unit itself."""

    device: Word = "cpu"
    torch: Word = ""
    precision: Word = ""
    threads: Annotated[int, Field(ge=0, le=4096)] = 1
    compiled: bool = False
    micro_batch: Count = 0
    capability: Word = ""
    """Kernels that are chosen by the processor: AVX2, AVX512, sm_90, …"""


class Unit(Message):
    """A function of files: what to make of which inputs; with the numerics class it decides the result."""

    version: Literal[1] = VERSION
    run: Sha256
    """The digest of the run's manifest."""
    name: Word
    """What people call it: `expert 3 @ 200..400`, `data / 5`, `partition`."""
    stage: Word
    role: Role
    share: int | Word | None = None
    """Which part of a stage that is cut into parts."""
    first: Count = 0
    last: Count = 0
    """Steps of a training: from the state at `first` to the one at `last`."""
    every: Count = 0
    """Steps between two hashes of the full state."""
    inputs: tuple[File, ...] = Field((), max_length=MOST_FILES)
    quorum: Annotated[int, Field(ge=1, le=5)] = 1
    """How many machines of different accounts must agree."""
    price: Count = 0
    """Milli-credits for all of it."""
    work: Annotated[float, Field(ge=0)] = 0.0
    """FLOPs or samples: what its duration is estimated from."""
    gpu: bool = False
    memory: Count = 0
    """Bytes that it needs, as the plan counts them; 0 where nobody knows."""


class Result(Message):
    """What a worker made of a unit."""

    unit: Sha256
    """The unit's digest."""
    outputs: tuple[File, ...] = Field((), max_length=MOST_FILES)
    removed: tuple[Name, ...] = Field((), max_length=MOST_FILES)
    """Files that were there before it, and are not any more."""
    chain: tuple[Hex, ...] = Field((), max_length=100_000)
    """Hashes of the full state at first, first + every, …, last."""
    numerics: Numerics
    seconds: Seconds = 0.0
    steps: Count = 0


class Capabilities(Message):
    """What a machine can do, as it measured itself; the coordinator believes none of it for money."""

    roles: tuple[Role, ...] = Field(get_args(Role), max_length=7)
    memory: Count = 0
    disk: Count = 0
    gpu: bool = False
    speed: Annotated[float, Field(ge=0)] = 0.0
    """FLOP/s of the minute's benchmark."""
    up: Seconds = 0.0
    """Mbit/s that may be used, as `down`; 0 where nobody measured."""
    down: Seconds = 0.0
    hours: Seconds = 0.0
    """For how long it will probably stay; 0 where nobody knows."""
    numerics: Numerics = Numerics()
    holds: tuple[Sha256, ...] = Field((), max_length=1024)
    """Files that it has: work that reads them is preferred."""


class Delegation(Message):
    """An account says that a device may act for it until then; signed by the account's key."""

    account: Hex
    """The public key, 32 bytes."""
    device: Hex
    expires: Seconds
    signature: Hex
    """Ed25519 over `atoll delegation v1`, the device's key and the time; see `keys.delegation_bytes`."""


class Join(Message):
    """A device introduces itself; the request is signed by the device's key."""

    protocol: int = VERSION
    delegation: Delegation
    nickname: Word = ""


class Joined(Message):
    """Who the coordinator takes a device for."""

    account: Sha256
    """The hash of the account's public key: what everybody sees."""
    device: Sha256
    now: Seconds
    """The coordinator's clock: a worker whose own is wrong goes by this one."""


class LeaseRequest(Message):
    """A machine asks for work that fits."""

    protocol: int = VERSION
    capabilities: Capabilities = Capabilities()
    run: Sha256 | None = None
    attempt: Identifier | None = None
    """Of the worker's making: who did not hear the answer asks again under the same, for the same lease."""


class Micro(Message):
    """A complete state on the way, from which anybody can go on."""

    step: Count
    files: tuple[File, ...] = Field(min_length=1, max_length=64)
    chain: tuple[Hex, ...] = Field((), max_length=100_000)
    """Of the unit so far."""


class LeaseOffer(Message):
    """Work for one machine, for a while."""

    kind: Literal["lease"] = "lease"
    lease: Identifier
    unit: Unit
    fence: Annotated[int, Field(ge=1)]
    """Rises with every lease of the unit; what bears an older one is late."""
    heartbeat_s: Seconds
    soft_deadline: Seconds
    """When it should be done, by the machine's measured speed."""
    hard_deadline: Seconds
    """When it is given to another."""
    resume: Micro | None = None
    now: Seconds
    probation: bool = False
    """Whether every result is audited, because its account is not known yet."""
    signature: Hex = ""


_NO = Literal["no-work", "finished", "waiting", "limit", "update", "banned", "other-run"]
ReasonCode = _NO | Literal["too-little-memory", "too-little-disk", "needs-gpu", "role", "numerics"]


class Refusal(Message):
    """No work, why, and when to come back."""

    kind: Literal["refusal"] = "refusal"
    reason: ReasonCode
    sentence: Sentence
    retry_after_s: Seconds
    now: Seconds = 0.0


class Heartbeat(Message):
    """I am still here, and this far."""

    fence: Annotated[int, Field(ge=1)]
    step: Count = 0
    loss: float | None = None
    head: Hex = ""
    """The newest link of the chain."""
    paused: bool = False


class HeartbeatAnswer(Message):
    """Go on until then, or stop."""

    verdict: Literal["keep", "stop"]
    reason: Sentence = ""
    deadline: Seconds
    heartbeat_s: Seconds
    now: Seconds


class Release(Message):
    """The machine gives a lease back: a person stopped it (no failure), or it cannot do the unit (one)."""

    fence: Annotated[int, Field(ge=1)]
    failed: bool = False
    reason: Sentence = ""


class Progress(Message):
    """A state on the way that was uploaded."""

    fence: Annotated[int, Field(ge=1)]
    micro: Micro


class Acknowledged(Message):
    """It is written down."""

    now: Seconds
    state: Word = ""


class Submission(Message):
    """A result under a lease."""

    fence: Annotated[int, Field(ge=1)]
    result: Result
    signed: Annotated[str, Field(max_length=40_000)] = ""
    traces: tuple[Hex, ...] = Field((), max_length=5000)
    """The device's word that it made this, and what only who took the steps knows: `vouching`, `tracing`."""


class Shown(Message):
    """States on the way of a segment that was handed in, so that an interval of it can be replayed."""

    files: tuple[File, ...] = Field(min_length=1, max_length=4)


SubmissionState = Literal["received", "checked", "accepted", "rejected", "duplicate"]


class Receipt(Message):
    """What became of a result; the same for every retry but for the state, signed by the coordinator."""

    submission: Identifier
    lease: Identifier
    unit: Sha256
    result: Sha256
    state: SubmissionState
    reason: Sentence = ""
    price: Count = 0
    """Milli-credits that it was worth, once accepted."""
    late: bool = False
    canonical: bool = False
    """Whether the run goes on from it; a late one can be paid without."""
    time: Seconds = 0.0
    url: Word = ""
    statement: Count | None = None
    """The index of its entry in the log."""
    wanted: tuple[Count, ...] = Field((), max_length=4)
    """Steps whose states should be shown for an audit; `final` is whether it is past all audits."""
    final: bool = True
    promise: Annotated[str, Field(max_length=4096)] = ""
    """The coordinator's statement that the entry will be in the log in time."""
    signature: Hex = ""

    @property
    def settled(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.state in ("rejected", "duplicate") or (self.state == "accepted" and self.final)


class Held(Message):
    """A lease that a worker believes to have."""

    lease: Identifier
    fence: Annotated[int, Field(ge=1)]
    done: bool = False
    """Whether its result is ready to be submitted."""


class Reconcile(Message):
    """After a start: all that a worker holds."""

    leases: tuple[Held, ...] = Field((), max_length=256)
    files: tuple[Sha256, ...] = Field((), max_length=4096)


class Reconciled(Message):
    """What to do with each."""

    leases: dict[Identifier, Literal["keep", "submit", "drop"]]
    files: dict[Sha256, Literal["keep", "submit", "drop"]]
    now: Seconds


class Manifest(Message):
    """What a run is, for whoever works on it: signed, and known by its digest."""

    version: Literal[1] = VERSION
    name: Word
    resolved: dict[str, JsonValue]
    """The whole recipe with every `auto` resolved."""
    graph: tuple[Word, ...] = Field((), max_length=100_000)
    inputs: tuple[File, ...] = Field((), max_length=100_000)
    """What the run reads of its source."""
    precision: Word = ""
    price: Count = 0
    """Milli-credits per 10^12 FLOPs."""
    target_s: Seconds = 7200.0
    """For how long one lease should last."""
    every: Count = 50
    """Steps between two hashes of a training's state."""
    addresses: tuple[Word, ...] = Field((), max_length=16)
    licence: Sentence = ""
    coordinator: Hex = ""
    """The public key by which receipts and this are signed."""
    log: Hex = ""
    policy: dict[str, JsonValue] = {}
    """Audit rates, escrow, quorums, as `verification.policy` reads them."""
    beacon: Word = ""
    download: Count = 0
    """Bytes that one expert needs."""
    atoll: Word = ""
    """The program's version that published it."""


class SignedManifest(Message):
    """The exact bytes that were signed, and the signature; in a fork also the statement that it is one."""

    manifest: Annotated[str, Field(max_length=BODY)]
    signature: Hex
    key: Hex
    fork: Annotated[str, Field(max_length=8192)] = ""
