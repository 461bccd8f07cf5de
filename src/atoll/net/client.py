"""A worker's side of the wire: signed requests that may be made again, files that go on where they broke off.

Connections go outwards alone, by HTTPS proxies where the environment names them. A coordinator may have
several addresses: one that does not answer is left for the next.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll.errors import AtollError, ConfigError, CorruptError, Interrupted
from atoll.net import keys, relocating, signing, statements, vouching
from atoll.net.protocol import (
    Acknowledged,
    Capabilities,
    Delegation,
    File,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Joined,
    LeaseOffer,
    LeaseRequest,
    Manifest,
    Message,
    Progress,
    Receipt,
    Reconcile,
    Reconciled,
    Refusal,
    Release,
    Shown,
    SignedManifest,
    Submission,
    parse,
)
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.download import Download
from atoll.storage.patience import Fault, Patience
from atoll.storage.store import Event

MEASURED = 1 << 20
"""Bytes of a piece from which on it counts for how fast a line is."""
PIECE = 4 << 20
"""Bytes of one request for or with a part of a file."""
TIMEOUT = 30.0
"""Seconds without a byte after which a request counts as lost."""
LONG, SHORT = 6 * 3600.0, 20.0
"""Seconds for which a coordinator may be away: where work would be lost, and where it goes on anyway."""
MessageT = TypeVar("MessageT", bound=Message)


class Refused(AtollError):  # noqa: N818 - an answer
    """The coordinator says no, for good."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Throttle:
    """At most so many megabits a second, of all files together; 0 for as many as there are."""

    def __init__(self, mbit: float, clock: Clock = CLOCK) -> None:
        self.mbit, self.clock = mbit, clock
        self._free, self._guard = 0.0, threading.Lock()

    def spend(self, count: int) -> None:
        """Wait until so many bytes may have been moved."""
        if not self.mbit:
            return
        with self._guard:
            self._free = max(self._free, self.clock.now()) + count * 8 / (self.mbit * 1e6)
            wait = self._free - self.clock.now()
        self.clock.sleep(max(0.0, wait))


class Rate:
    """Megabits a second at which files were moved lately; 0 before any was."""

    def __init__(self, mbit: float = 0.0) -> None:
        self.mbit = mbit

    def note(self, count: int, seconds: float) -> None:
        """So many bytes took so long; what is small says more about waiting than about the line."""
        if count >= MEASURED and seconds > 0:
            new = count * 8 / 1e6 / seconds
            self.mbit = new if not self.mbit else self.mbit + (new - self.mbit) / 3


class Client:
    """One device's requests to one coordinator."""

    def __init__(
        self,
        addresses: Sequence[str],
        key: Ed25519PrivateKey,
        *,
        clock: Clock = CLOCK,
        event: Event | None = None,
        throttle: Throttle | None = None,
        transport: httpx.BaseTransport | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        if not addresses or not all(one.startswith(("http://", "https://")) for one in addresses):
            raise ConfigError(
                f"'{', '.join(addresses)}' is no address; give one like https://run.example.org"
            )
        self.addresses = [one.rstrip("/") for one in addresses]
        self.key, self.clock, self.event = key, clock, event or _unheard
        self.device = keys.identity(keys.public_hex(key))
        self.account = ""
        """Whom it acts for, once it has joined."""
        self.coordinator = ""
        """The key that stands for offers and receipts, once the manifest was read; as `run`, its digest."""
        self.run = ""
        self.throttle = throttle or Throttle(0.0, clock)
        self.up, self.down = Rate(), Rate()
        self.stopping = stopping
        """Whether somebody asks to stop: then a coordinator that is away is not waited for."""
        self.offset = 0.0
        """Seconds by which the coordinator's clock is ahead of ours."""
        self._manifest: Manifest | None = None
        self._http = httpx.Client(timeout=TIMEOUT, transport=transport, follow_redirects=False)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def now(self) -> float:
        """The coordinator's clock, as far as we know it."""
        return self.clock.date() + self.offset

    # messages

    def manifest(self) -> tuple[Manifest, SignedManifest]:
        """What the run is, in the words that its coordinator has signed."""
        raw = self._ask("GET", "/v1/manifest", patience=SHORT).content
        signed = parse(SignedManifest, raw)
        self._manifest = checked(signed)
        self.coordinator, self.run = signed.key, self._manifest.digest
        return self._manifest, signed

    def join(self, delegation: Delegation, nickname: str = "") -> Joined:
        """Introduce this device."""
        joined = self._say(Joined, "/v1/accounts", Join(delegation=delegation, nickname=nickname))
        self.account = joined.account
        return joined

    def lease(self, capabilities: Capabilities, attempt: str) -> LeaseOffer | Refusal:
        """Ask for work."""
        body = LeaseRequest(capabilities=capabilities, attempt=attempt).model_dump_json().encode()
        raw = self._ask("POST", "/v1/leases", body).content
        kind: type[LeaseOffer] | type[Refusal] = LeaseOffer if b'"lease"' in raw[:20] else Refusal
        with contextlib.suppress(ValueError, AttributeError):
            kind = LeaseOffer if json.loads(raw).get("kind") == "lease" else Refusal
        answer = parse(kind, raw)
        if isinstance(answer, LeaseOffer) and self.coordinator:
            vouching.check(answer, self.coordinator)
        return answer

    def heartbeat(self, lease: str, message: Heartbeat) -> HeartbeatAnswer:
        """A sign of life; one that does not arrive is no matter."""
        return self._say(HeartbeatAnswer, f"/v1/leases/{lease}/heartbeat", message, patience=SHORT)

    def progress(self, lease: str, message: Progress) -> Acknowledged:
        """A state from which others can go on."""
        return self._say(Acknowledged, f"/v1/leases/{lease}/progress", message)

    def release(self, lease: str, message: Release, patience: float = SHORT) -> Acknowledged:
        """Give a lease back."""
        return self._say(Acknowledged, f"/v1/leases/{lease}/release", message, patience=patience)

    def submit(self, lease: str, message: Submission) -> Receipt:
        """Hand in what was made; as often as necessary, it counts once."""
        return self._vouched(self._say(Receipt, f"/v1/leases/{lease}/submit", message))

    def show(self, submission: str, message: Shown) -> Receipt:
        """States that were asked for."""
        return self._vouched(self._say(Receipt, f"/v1/submissions/{submission}/states", message))

    def reconcile(self, message: Reconcile) -> Reconciled:
        """What to do with all that we hold."""
        return self._say(Reconciled, "/v1/reconcile", message)

    def submission(self, identifier: str) -> Receipt:
        """What has become of a result."""
        raw = self._ask("GET", f"/v1/submissions/{identifier}", patience=SHORT).content
        return self._vouched(parse(Receipt, raw))

    def _vouched(self, receipt: Receipt) -> Receipt:
        if self.coordinator:
            vouching.check(receipt, self.coordinator)
        return receipt

    def _say(self, kind: type[MessageT], path: str, message: Message, patience: float = LONG) -> MessageT:
        answer = self._ask("POST", path, message.model_dump_json().encode(), patience=patience)
        return parse(kind, answer.content)

    def log(self, name: str) -> bytes | None:
        """A file of the run's log; None where there is none."""
        answer = self._once("GET", f"/log/{name}", b"", {}, final=(404,))
        return answer.content if answer.status_code == 200 else None

    # files

    def download(self, file: File, path: Path) -> None:
        """A file to a path, going on where an earlier try stopped, and checked."""
        patience = self._patience(LONG)
        where = f"/v1/files/{file.sha256}"

        def piece(start: int, stop: int) -> bytes:
            end = min(stop, start + PIECE)
            since = self.clock.now()
            data = patience("download", file.path, lambda: self._piece(where, start, end))
            self.down.note(len(data), self.clock.now() - since)
            self.throttle.spend(len(data))
            return data

        Download(f"{self.addresses[0]}{where}", lambda: file.size, piece, self.event).to(path, file.sha256)

    def _piece(self, where: str, start: int, stop: int) -> bytes:
        answer = self._once("GET", where, b"", {"Range": f"bytes={start}-{stop - 1}"})
        data = answer.content
        if answer.status_code == 200:  # a proxy that knows no ranges
            data = data[start:stop]
        if not data or len(data) > stop - start:
            raise Fault(f"{len(data)} bytes came where {stop - start} were asked for")
        return data

    def upload(self, path: Path, file: File) -> None:
        """A file from a path, going on where an earlier try stopped; nothing where it is there already."""
        patience, where = self._patience(LONG), f"/v1/files/{file.sha256}"
        with path.open("rb") as source:
            while (offset := patience("upload", file.path, lambda: self._received(where))) is not None:
                if offset > file.size:
                    raise CorruptError(f"{path} is shorter than what was sent of it; do the unit again")
                if not self._send(source, offset, file, where, patience):
                    continue
                return

    def _received(self, where: str) -> int | None:
        """How much of a file the coordinator has; None for all of it."""
        answer = self._once("HEAD", where, b"", {}, final=(404,))
        return None if answer.status_code == 200 else int(answer.headers.get("upload-offset", "0"))

    def _send(self, source: Any, offset: int, file: File, where: str, patience: Patience) -> bool:
        """Send what is missing; whether the coordinator has all of it now."""
        while True:
            source.seek(offset)
            data = source.read(PIECE)
            stop = offset + len(data)
            span = f"bytes {offset}-{stop - 1}/{file.size}" if data else f"bytes */{file.size}"
            request = partial(self._once, "PUT", where, data, {"Content-Range": span}, (409, 422))
            since = self.clock.now()
            answer = patience("upload", file.path, request)
            self.up.note(len(data), self.clock.now() - since)
            self.throttle.spend(len(data))
            if answer.status_code in (409, 422):  # it has more or less than we think, or something else
                self.event("upload_fault", name=file.path, problem=_problem(answer)[1])
                return False
            if answer.status_code != 202:
                return True
            offset = stop

    # requests

    def _patience(self, seconds: float) -> Patience:
        return Patience(self.addresses[0], seconds, self.event, self.clock)

    def _ask(self, method: str, path: str, body: bytes = b"", patience: float = LONG) -> httpx.Response:
        return self._patience(patience)(method, path, lambda: self._once(method, path, body, {}))

    def _once(
        self, method: str, path: str, body: bytes, headers: dict[str, str], final: Sequence[int] = ()
    ) -> httpx.Response:
        """One request, signed by the coordinator's clock; by a better one if it says that ours is wrong."""
        answer = self._send_signed(method, path, body, headers)
        if answer.status_code == 401 and _problem(answer)[0] == "clock":
            self._set_clock(answer)
            answer = self._send_signed(method, path, body, headers)
        if answer.status_code >= 500 or answer.status_code in (408, 425, 429):
            raise Fault(f"{answer.status_code}: {_problem(answer)[1]}")
        if answer.status_code == 409 and _problem(answer)[0] == "moved":
            self._move()
        if answer.status_code >= 400 and answer.status_code not in final:
            raise Refused(*_problem(answer))
        return answer

    def _send_signed(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        url = f"{self.addresses[0]}{path}"
        signed = signing.sign(signing.Request(method, url), body, self.key, self.device, self.now())
        own = {"Content-Type": "application/json"} if body and "Content-Range" not in headers else {}
        try:
            return self._http.request(method, url, content=body, headers={**own, **headers, **signed})
        except httpx.HTTPError as error:
            self.addresses.append(self.addresses.pop(0))  # the next one, if there is another
            if self.stopping():
                raise Interrupted(
                    "asked to stop while the coordinator is away; what is held is kept"
                ) from None
            raise Fault(_words(error)) from None

    def _move(self) -> None:
        """Go to where the run is served now, if its own coordinator says so; there one asks again."""
        if self._manifest is None:
            return
        answer = self._send_signed("GET", "/v1/relocation", b"", {})
        relocation = relocating.checked(parse(relocating.SignedRelocation, answer.content), self._manifest)
        self.addresses = [one.rstrip("/") for one in relocation.addresses]
        self.event("moved", addresses=self.addresses)
        raise Fault("the run has moved")

    def _set_clock(self, answer: httpx.Response) -> None:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            date = float(answer.json()["error"]["now"])
            self.offset = date - self.clock.date()
            self.event("clock_wrong", seconds=round(self.offset))


def checked(signed: SignedManifest) -> Manifest:
    """A manifest, if it is its coordinator's."""
    manifest = parse(Manifest, signed.manifest.encode())
    try:
        keys.public_key(signed.key).verify(bytes.fromhex(signed.signature), signed.manifest.encode())
    except Exception:  # whatever the library has to say, it is not signed
        raise CorruptError("the manifest is not signed by its coordinator; do not work for it") from None
    if manifest.coordinator != signed.key and not _is_fork(signed, manifest):
        raise CorruptError("the manifest names another coordinator than the one that signed it")
    return manifest


def _is_fork(signed: SignedManifest, manifest: Manifest) -> bool:
    """Whether another coordinator says in the log, by its own key, that it goes on with this run."""
    try:
        statement = statements.opened(signed.fork.encode(), {signed.key})
    except CorruptError:
        return False
    content = (statement.kind, statement.run, statement.facts.get("coordinator"))
    return content == ("fork", manifest.digest, signed.key)


def _unheard(kind: str, /, **facts: Any) -> None:
    """Nobody wants to know of faults."""


def _problem(answer: httpx.Response) -> tuple[str, str]:
    """Code and sentence of an error."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = answer.json()["error"]
        return str(error["code"]), str(error["message"])
    return str(answer.status_code), answer.reason_phrase or "no reason given"


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}".strip(": ")
