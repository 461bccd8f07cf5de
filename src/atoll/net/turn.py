"""One lease while its unit is done: a sealed job, signs of life, states uploaded as they come, stops."""

import contextlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import AtollError, Interrupted, RunError
from atoll.launch import warm
from atoll.launch.job import last_line
from atoll.net import sealed
from atoll.net.client import Client, Refused
from atoll.net.home import LOG, RESOLVED, UNIT, Held, Home
from atoll.net.limits import Limits
from atoll.net.protocol import File, Heartbeat, Micro, Progress, Release
from atoll.net.shelves import METRICS, STATE
from atoll.net.telling import Tell
from atoll.net.units import described
from atoll.net.work import links_of, read_chain
from atoll.runs import Tail, graph, read_json
from atoll.storage.clock import CLOCK, Clock

POLL = 0.1
"""Seconds between two looks at a job."""
LOOK = 1.0
"""Seconds between two looks at its files, to say how far it is: the job has better use for the core."""
JITTER = 0.2
"""By which heartbeats come sooner or later, so that thousands of workers do not come together."""
PARTS = ("atoll.train.segment", "atoll.train.hardware", "atoll.devices")
"""What every unit imports, besides what makes its stage."""
RETRIES = 2
"""How often a job that died is started again before its unit is given back."""


class Job(Protocol):
    """A process that does a unit, as `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""

    def wait(self) -> int:
        """Until it has ended."""

    def send_signal(self, number: int) -> None:
        """Ask it to stop, to pause, to go on."""


Start = Callable[[Held, Home, Limits], Job]


class SealedJobs:
    """Sealed processes for units; what they import stays loaded from one to the next."""

    def __init__(self) -> None:
        self._parents = warm.Parents()

    def __call__(self, held: Held, home: Home, limits: Limits) -> Job:
        """Start one."""
        free = limits.room(home.folder, shutil.disk_usage(home.folder).free)
        (home.folder / "jobs").mkdir(exist_ok=True)
        (held.folder / LOG).unlink(missing_ok=True)
        order = sealed.Order(
            "atoll.net.work",
            [str(place.resolve()) for place in (held.folder / UNIT, held.folder / RESOLVED, held.run)],
            held.folder,
            (home.folder / "jobs").resolve(),
            home.keys,
            limits.variables(),
            max(free, 1 << 20),
            ("atoll.net.work", *graph.makers(held.offer.unit.stage), *PARTS),
        )
        return sealed.fork(order, self._parents, held.folder / LOG)

    def close(self) -> None:
        """Let go of what is loaded."""
        self._parents.close()


class Released(Exception):  # noqa: N818 - a state
    """A lease is over before its unit is done."""


@dataclass
class Machine:
    """What a worker works with."""

    client: Client
    home: Home
    tell: Tell
    limits: Limits = field(default_factory=Limits)
    stopping: Callable[[], bool] = lambda: False
    clock: Clock = CLOCK
    start: Start = field(default_factory=SealedJobs)
    meanwhile: Callable[[], None] = lambda: None
    """Done now and then while a unit is worked on: earlier results may be asked about."""

    def reason_to_wait(self, working: bool = False) -> str:
        """Why nothing is done just now; nothing if there is no reason."""
        own = float(self.limits.cores) if working else 0.0
        return self.limits.reason_to_wait(datetime.fromtimestamp(self.clock.date()), own)

    def give_back(self, held: Held, reason: str, *, failed: bool) -> None:
        """Say that a unit will not be done here, and why."""
        self.tell.news(f"{held.offer.unit.name}: given back: {reason}")
        message = Release(fence=held.offer.fence, failed=failed, reason=reason[:500])
        with contextlib.suppress(AtollError, Interrupted):
            self.client.release(held.offer.lease, message)
        held.drop()


@dataclass
class Turn:
    """One lease while its unit is being done: signs of life, states that are uploaded, requests to stop."""

    machine: Machine
    held: Held
    verdict: str = "keep"
    hands_on: bool = True
    """Whether states on the way are uploaded, so that others can go on from them."""
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "atoll-worker"))
    _beat: "Future[None] | None" = None
    _upload: "Future[None] | None" = None
    _due: float = 0.0
    _told: float = 0.0
    _sent: int = -1
    _next: float = 0.0
    """When a state may be sent again."""
    _paused: bool = False
    _look: float = 0.0
    """When the job's files are looked at again."""

    @property
    def every(self) -> float:
        """Seconds between two signs of life: as the coordinator said last, for many may have come since."""
        return self._told or self.held.offer.heartbeat_s

    @property
    def going_on(self) -> str:
        """From where."""
        resume = self.held.offer.resume
        return f", going on from step {resume.step}" if resume is not None else ""

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats, whatever is being done meanwhile."""
        try:
            yield
        finally:
            self._pool.shutdown(wait=True)

    def check(self) -> None:
        """Between two pieces of work: a sign of life if one is due, and whether to go on."""
        self._live()
        if self.verdict == "stop":
            self.machine.tell.news(f"{self.held.offer.unit.name}: no longer ours; dropped")
            self.held.drop()
            raise Released
        if self.machine.stopping():
            self.machine.give_back(self.held, "its user stopped it", failed=False)
            raise Released

    def work(self) -> None:
        """Until the unit is done; a job that dies is started again from its last state."""
        machine, held = self.machine, self.held
        for attempt in range(1 + RETRIES):
            job = machine.start(held, machine.home, machine.limits)
            try:
                code = self._watch(job)
            finally:
                if job.poll() is None:
                    job.send_signal(signal.SIGKILL)
                    job.wait()
            if code == 0:
                return
            self.check_stopped()
            words = last_line(held.folder / LOG) or f"exit code {code}"
            if code == 1 or attempt == RETRIES:
                raise RunError(words)
            machine.tell.news(f"{held.offer.unit.name}: its job died ({code}); going on from its last state")

    def check_stopped(self) -> None:
        """After a job has ended early: save what it did where others find it, if it was asked to."""
        if self.machine.stopping() and self.hands_on:
            if self._upload is not None:
                with contextlib.suppress(AtollError, Interrupted, OSError):
                    self._upload.result()
            with contextlib.suppress(AtollError, Interrupted, OSError):
                self._send_state()
        self.check()

    def _watch(self, job: Job) -> int:
        asked = False
        while (code := job.poll()) is None:
            self.machine.clock.sleep(POLL)
            self._live()
            self._pause(job)
            if not asked and (self.machine.stopping() or self.verdict == "stop"):
                asked = True
                job.send_signal(signal.SIGCONT)
                job.send_signal(signal.SIGTERM)
            if self.machine.clock.now() >= self._look:
                self._look = self.machine.clock.now() + min(LOOK, self.every)
                self._say()
                if not asked:
                    self._send_later()
        return code

    def _pause(self, job: Job) -> None:
        """Stop the job's clock while the machine is needed otherwise; the lease stays."""
        reason = self.machine.reason_to_wait(working=not self._paused)
        if bool(reason) != self._paused:
            self._paused = bool(reason)
            job.send_signal(signal.SIGSTOP if self._paused else signal.SIGCONT)
            self.machine.tell.news(
                f"{self.held.offer.unit.name}: " + (f"paused: {reason}" if reason else "goes on")
            )
            self._due = 0.0

    def _say(self) -> None:
        unit, latest = self.held.offer.unit, self._latest()
        if latest:
            rate = latest.get("samples_per_second", 0.0)
            loss = latest.get("loss", 0.0)
            words = f"step {latest['step']} of {unit.last}, loss {loss:.4f}, {rate:.0f} samples/s"
            self.machine.tell.now(f"training {unit.stage}: {words}")
        else:
            self.machine.tell.now(f"at work: {unit.name}")

    def _latest(self) -> dict[str, Any]:
        for path in self._stage().glob(METRICS):
            return Tail(path).latest()
        return {}

    def _stage(self) -> Path:
        """The folder of the stage that is trained; of another unit, one that is not there."""
        states = [path for path in self.held.run.glob(f"**/{STATE}") if path.is_dir()]
        return states[0].parent if states and self.held.offer.unit.every else self.held.folder / "none"

    def _live(self) -> None:
        """A heartbeat, if one is due and none is under way."""
        clock = self.machine.clock
        if clock.now() >= self._due and (self._beat is None or self._beat.done()):
            self._due = clock.now() + self.every * random.uniform(1 - JITTER, 1 + JITTER)
            self._beat = self._pool.submit(self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        unit, latest = self.held.offer.unit, self._latest()
        links = links_of(unit, read_chain(self.held.chain))
        message = Heartbeat(
            fence=self.held.offer.fence,
            step=int(latest.get("step", unit.first)),
            loss=latest.get("loss"),
            head=links[-1] if links else "",
            paused=self._paused,
        )
        try:
            answer = self.machine.client.heartbeat(self.held.offer.lease, message)
            self.verdict, self._told = answer.verdict, answer.heartbeat_s
        except Refused:
            self.verdict = "stop"
        except (AtollError, Interrupted):
            return  # the coordinator is away: the work goes on
        self.machine.meanwhile()

    def _send_later(self) -> None:
        """Upload the newest state beside the training, once in a heartbeat's time at most.

        Where states are sent in no time, sending each of them would cost more than it could save: also the
        first one, of a unit that is done before the second.
        """
        now = self.machine.clock.now()
        self._next = self._next or now + self.every
        due = self.hands_on and self.held.offer.unit.role == "train"
        if due and now >= self._next and (self._upload is None or self._upload.done()):
            pointer = self._stage() / STATE / "latest.json"
            if pointer.is_file() and int(read_json(pointer)["step"]) > max(
                self._sent, self.held.offer.unit.first
            ):
                self._next = now + self.every
                self._upload = self._pool.submit(self._try_to_send)

    def _try_to_send(self) -> None:
        with contextlib.suppress(AtollError, Interrupted, OSError):
            self._send_state()

    def _send_state(self) -> None:
        """The newest state, from which anybody can go on; a second name keeps it while training goes on."""
        stage, unit = self._stage(), self.held.offer.unit
        entry = read_json(stage / STATE / "latest.json")
        step = int(entry["step"])
        if step <= max(self._sent, unit.first) or step >= unit.last:
            return
        outgoing = self.held.folder / "outgoing"
        shutil.rmtree(outgoing, ignore_errors=True)
        outgoing.mkdir()
        (outgoing / "state").hardlink_to(stage / STATE / entry["file"])
        path = (stage / STATE / entry["file"]).relative_to(self.held.run).as_posix()
        size = (outgoing / "state").stat().st_size
        state = File(path=path, sha256=str(entry["sha256"]), size=size)
        self.machine.client.upload(outgoing / "state", state)
        files = [state]
        if (metrics := stage / METRICS).is_file():
            shutil.copyfile(metrics, outgoing / METRICS)
            copy = described(outgoing / METRICS, outgoing)
            if copy is not None:
                files.append(copy.model_copy(update={"path": metrics.relative_to(self.held.run).as_posix()}))
                self.machine.client.upload(outgoing / METRICS, copy)
        chain = read_chain(self.held.chain)
        links = links_of(unit, {number: link for number, link in chain.items() if number <= step})
        micro = Micro(step=step, files=tuple(files), chain=links)
        self.machine.client.progress(
            self.held.offer.lease, Progress(fence=self.held.offer.fence, micro=micro)
        )
        self._sent = step
        self.machine.tell.news(f"{unit.name}: state of step {step} is uploaded")
