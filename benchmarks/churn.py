"""Volunteers who come and go while 32 experts are trained: how long it takes, and how much work is lost.

Coordinator, client, signatures and database are the real ones; time and training are not. A thousand machines
are on for three hours in the middle and then switched off without a word, for eight hours in the middle; one
in five never comes back. A state is 16 bytes for each of 605 million parameters, and goes up at 20 Mbit/s: it
takes longer than an hour. Against the bound of machines of the same speed that never leave. `--small` only
shows that everything runs.
"""

import argparse
import asyncio
import heapq
import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from atoll.net import callers, choosing, keeping, leasing
from atoll.net.api import create_app
from atoll.net.client import Client, Refused
from atoll.net.leasing import Terms
from atoll.net.protocol import Capabilities, Held, LeaseOffer, Reconcile
from atoll.net.tables import TaskRow
from atoll.storage.clock import Clock
from benchmarks._crowd import Chains, Volunteer, coordinator, described
from benchmarks._shown import show

HOUR = 3600.0
BEAT, PATIENCE = 600.0, 600.0
"""Seconds between two heartbeats, and until whoever found no work asks again."""
SCALE = 1e-7
"""Bytes that are really sent for a byte of a state; connections are as much slower."""


class Crowd(NamedTuple):
    """Who is there, and what there is to do."""

    volunteers: int = 1000
    experts: int = 32
    parameters: float = 605e6
    hours: float = 100.0
    """Of one machine for one expert."""
    session: float = 3.0
    """Hours in the middle, as `absence`."""
    absence: float = 8.0
    spread: float = 1.5
    """Of the logarithm of both."""
    gone: float = 0.2
    """Share of volunteers who do not come back after their first session."""
    up: float = 20.0
    """Mbit/s, as `down`."""
    down: float = 100.0
    save: float = 600.0
    """Seconds of training between two states on a machine's own disk."""
    speeds: float = 0.25
    """Spread of the logarithm of real speeds around what machines say."""
    longest: float = 3000.0
    """Hours after which nobody waits any more."""

    @property
    def state(self) -> float:
        """Bytes."""
        return 16 * self.parameters


SMALL = Crowd(volunteers=40, experts=3, hours=5.0)
FLOPS = 2e13
"""FLOP/s that every machine says it has."""


class Simulated(Clock):
    """Time that passes when somebody moves it."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.time

    def date(self) -> float:
        """As if it had begun on some day."""
        return 1.8e9 + self.time

    def sleep(self, seconds: float) -> None:
        """Nobody sleeps here: whoever would has met a fault that this simulation does not have."""
        raise RuntimeError("a request failed")


class Inside(httpx.BaseTransport):
    """Requests to an application in this process."""

    def __init__(self, app: Any) -> None:
        self._inner, self._loop = httpx.ASGITransport(app), asyncio.new_event_loop()
        self.count = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request from beginning to end."""
        request.read()
        self.count += 1
        return self._loop.run_until_complete(self._ask(request))

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        content = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

    def close(self) -> None:
        """Others still need it."""

    def end(self) -> None:
        """Nobody does any more."""
        self._loop.close()


@dataclass
class Machine:
    """A volunteer's, and what is on its disk."""

    one: Volunteer
    speed: float
    """Steps a second."""
    session: int = 0
    """Changes whenever it is switched on or off: what was to happen in an earlier one does not."""
    on: bool = False
    since: float = 0.0
    """When it came, if it was not away for less than an hour; as `went`, in seconds."""
    went: float = -math.inf
    leaves: bool = False
    """Whether it will not come back."""
    began: float = 0.0
    """When the training that runs now began, at which step."""
    step: float = 0.0
    training: bool = False
    saved: int = 0
    """Step of the newest state on its disk."""
    sent: int = 0
    left: float = 0.0
    """Seconds for which the last state must still be sent; 0 before it is there."""
    holds: tuple[str, ...] = ()
    """Digests of states that it has a copy of."""


@dataclass
class World:
    """Everybody, and what happens when."""

    crowd: Crowd
    folder: Path
    seed: int = 0
    clock: Simulated = field(default_factory=Simulated)
    trained: float = 0.0
    """Steps that any machine did."""
    idle: float = 0.0
    """Machine seconds that passed with a last state on its way, and nothing trained."""
    waiting: set[str] = field(default_factory=set)
    """Devices that are on and have no work."""
    leases: int = 0
    resumed: int = 0
    kept: int = 0
    _looked: tuple[int, int] = (-1, -1)
    _free: Sequence[Any] = ()

    def __post_init__(self) -> None:
        crowd = self.crowd
        self.source = random.Random(self.seed)
        self.every = 10
        self.steps = round(crowd.hours * HOUR / crowd.save) * self.every
        self.flop = FLOPS * crowd.hours * HOUR / self.steps
        """Of one step."""
        plan = Chains(
            crowd.experts,
            self.steps,
            self.steps,
            self.every,
            flops=self.flop * self.steps,
            size=round(crowd.state * SCALE),
        )
        self.plan = plan
        self.here = coordinator(
            self.folder,
            str(self.folder / "churn.db"),
            plan,
            clock=self.clock,
            terms=Terms(heartbeat=BEAT),
            retry=PATIENCE,
            target=2 * HOUR,
        )
        self.wire = Inside(create_app(self.here))
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.machines = [self._machine() for _ in range(crowd.volunteers)]
        self.capable = Capabilities(gpu=True, speed=FLOPS, up=crowd.up * SCALE, down=crowd.down * SCALE)
        self.sending = crowd.state * 8 / (crowd.up * 1e6)
        self.fetching = crowd.state * 8 / (crowd.down * 1e6)

    def _machine(self) -> Machine:
        client = Client(
            ["http://run.example"], Ed25519PrivateKey.generate(), clock=self.clock, transport=self.wire
        )
        speed = FLOPS / self.flop * math.exp(self.source.gauss(0, self.crowd.speeds))
        leaves = self.source.random() < self.crowd.gone
        return Machine(Volunteer(client, self.plan.size), speed, leaves=leaves)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Something happens after a while."""
        heapq.heappush(self._queue, (self.clock.time + seconds, next(self._order), act))

    def of(self, machine: Machine, seconds: float, act: Callable[[Machine], None]) -> None:
        """Something happens on a machine, if it is still on then."""
        session = machine.session
        self.later(seconds, lambda: act(machine) if machine.session == session else None)

    def run(self) -> None:
        """Until all experts are there."""
        for machine in self.machines:
            self.later(self.source.uniform(0, 12 * HOUR), partial(self.come, machine))
        self.later(0.0, self.keep)
        while not self.here.done and self.clock.time < self.crowd.longest * HOUR:
            self.clock.time, _, act = heapq.heappop(self._queue)
            act()
        for machine in self.machines:
            self.stop(machine)

    def keep(self) -> None:
        """What the coordinator does by itself."""
        self.kept += 1
        keeping.pulse(self.here, BEAT)
        keeping.sweep(self.here)
        with self.here.database.writing(durable=False) as session:
            callers.heard(session, sorted(self.waiting), self.clock.date())
        self.waiting.clear()
        self.later(BEAT / 2, self.keep)

    def is_any_for(self, machine: Machine) -> bool:
        """Whether the coordinator has something that a machine which came when it did could begin."""
        moment = (self.wire.count, self.kept)
        if moment != self._looked:  # nothing else changes what is free
            free = select(TaskRow.created, TaskRow.heard).where(TaskRow.state.in_(leasing.FREE))
            with self.here.database.reading() as session:
                self._looked, self._free = moment, session.execute(free).all()
        here, now = self.clock.time - machine.since, self.clock.date()
        return any(
            here >= choosing.stay(self.sending, now - max(created, heard)) for created, heard in self._free
        )

    def hours(self, middle: float) -> float:
        """Of a session or an absence, in seconds."""
        return middle * HOUR * math.exp(self.source.gauss(0, self.crowd.spread))

    # machines

    def come(self, machine: Machine) -> None:
        """Switched on."""
        machine.on, machine.session = True, machine.session + 1
        if self.clock.time - machine.went > callers.AWAY:
            machine.since = self.clock.time
        if not machine.one.client.account:
            machine.one.join()
        self.of(machine, self.hours(self.crowd.session), self.go)
        offer = machine.one.offer
        if offer is None:
            self.ask(machine)
            return
        held = Held(lease=offer.lease, fence=offer.fence, done=machine.left > 0)
        word = machine.one.client.reconcile(Reconcile(leases=(held,))).leases[offer.lease]
        if word == "drop":
            machine.one.offer = None
            self.ask(machine)
        else:
            self.resumed += 1
            self.beat(machine)
            if machine.left > 0:
                self.send_last(machine)
            else:
                self.train(machine, machine.saved)

    def go(self, machine: Machine) -> None:
        """Switched off, without a word."""
        self.stop(machine)
        machine.on, machine.session = False, machine.session + 1
        machine.went = self.clock.time
        if not machine.leaves:
            self.later(self.hours(self.crowd.absence), lambda: self.come(machine))

    def ask(self, machine: Machine) -> None:
        """For work; where there is none for it, it is not worth a request to hear so."""
        if not self.is_any_for(machine):
            self.waiting.add(machine.one.client.device)
            self.of(machine, PATIENCE * self.source.uniform(0.8, 1.2), self.ask)
            return
        answer = machine.one.lease(self.capable.model_copy(update={"holds": machine.holds}))
        if not isinstance(answer, LeaseOffer):
            self.of(machine, answer.retry_after_s * self.source.uniform(0.8, 1.2), self.ask)
            return
        self.leases += 1
        unit, resume = answer.unit, answer.resume
        machine.saved = machine.sent = resume.step if resume is not None else unit.first
        machine.left = 0.0
        own = self.digest(unit.stage, machine.saved) in machine.holds
        empty = machine.saved == 0
        self.beat(machine)
        self.of(
            machine,
            0.0 if own or empty else self.fetching,
            lambda machine: self.train(machine, machine.saved),
        )

    def digest(self, stage: str, step: int) -> str:
        """Of a state."""
        return described(stage, step, self.plan.size)[0].sha256

    def train(self, machine: Machine, step: int) -> None:
        """From a step on, until the unit's end or until something comes between."""
        if machine.one.offer is None:
            return
        unit = machine.one.offer.unit
        machine.training, machine.began, machine.step = True, self.clock.time, step
        self.of(machine, (unit.last - step) / machine.speed, self.trained_all)
        self.of(machine, self.every / machine.speed, self.send_on)

    def reached(self, machine: Machine) -> float:
        """The step at which a machine is."""
        unit = machine.one.offer.unit if machine.one.offer is not None else None
        if not machine.training or unit is None:
            return machine.step
        return min(unit.last, machine.step + (self.clock.time - machine.began) * machine.speed)

    def stop(self, machine: Machine) -> None:
        """Training, whatever for: what was done is counted, and what was saved stays on its disk."""
        step = self.reached(machine)
        if machine.training:
            self.trained += step - machine.step
            machine.saved = max(machine.saved, int(step // self.every) * self.every)
        machine.training, machine.step = False, step

    def send_on(self, machine: Machine) -> None:
        """The newest state, while training goes on."""
        step = int(self.reached(machine) // self.every) * self.every
        if not machine.training or machine.one.offer is None:
            return
        if step <= machine.sent:
            self.of(machine, self.every / machine.speed, self.send_on)
            return
        lease = machine.one.offer.lease
        self.of(machine, self.sending, lambda machine: self.sent_on(machine, step, lease))

    def sent_on(self, machine: Machine, step: int, lease: str) -> None:
        """It is there."""
        offer = machine.one.offer
        if offer is None or offer.lease != lease or step >= offer.unit.last or not machine.training:
            return
        machine.one.hand_on(step, self.folder)
        machine.sent = step
        self.send_on(machine)

    def trained_all(self, machine: Machine) -> None:
        """All steps of the unit are done."""
        if not machine.training or machine.one.offer is None:
            return
        self.stop(machine)
        machine.saved, machine.left = machine.one.offer.unit.last, self.sending
        self.send_last(machine)

    def send_last(self, machine: Machine) -> None:
        """Its last state, in pieces of five minutes: what is sent stays sent."""
        piece = min(machine.left, 300.0)
        self.of(machine, piece, lambda machine: self.sent_piece(machine, piece))

    def sent_piece(self, machine: Machine, piece: float) -> None:
        """Some more is there; with the last of it, the result."""
        self.idle += piece
        machine.left -= piece
        offer = machine.one.offer
        if machine.left > 1e-6 or offer is None:
            self.send_last(machine)
            return
        machine.left = 0.0
        stage, last = offer.unit.stage, offer.unit.last
        machine.one.submit(self.folder)
        machine.holds = (self.digest(stage, last),)
        self.ask(machine)

    def beat(self, machine: Machine) -> None:
        """A sign of life, now and then as long as it holds something."""
        offer = machine.one.offer
        if offer is None:
            return
        try:
            keep = machine.one.beat(int(self.reached(machine)))
        except Refused:
            keep = False
        if not keep and not machine.left:
            self.stop(machine)
            machine.one.offer = None
            self.ask(machine)
            return
        session, lease = machine.session, offer.lease

        def again() -> None:
            current = machine.one.offer
            if machine.session == session and current is not None and current.lease == lease:
                self.beat(machine)

        self.later(BEAT * self.source.uniform(0.8, 1.2), again)


def measure(crowd: Crowd, seed: int = 0) -> dict[str, Any]:
    """One run from beginning to end."""
    since = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="atoll-churn-") as name:
        world = World(crowd, Path(name), seed)
        world.run()
        finished = world.here.done
        world.here.database.close()
        world.wire.end()
    needed = crowd.experts * world.steps
    bound = crowd.hours + (world.sending + HOUR * 0) / HOUR
    hours = world.clock.time / HOUR
    wasted = 1 - needed / max(world.trained, 1e-9)
    return {
        "benchmark": "churn",
        "ratios": {
            "10 % of the work lost, really lost": 0.1 / max(wasted, 1e-9),
            "machines that never leave, time": bound / hours,
        },
        "detail": {
            "crowd": crowd._asdict(),
            "finished": finished,
            "hours": round(hours, 1),
            "hours of machines that never leave": round(bound, 1),
            "share of all trained steps that was lost": round(wasted, 4),
            "share of busy time with nothing trained, a last state on its way": round(
                world.idle * world.steps / (crowd.hours * HOUR) / max(world.trained, 1e-9), 4
            ),
            "leases": world.leases,
            "leases gone on with after an absence": world.resumed,
            "requests": world.wire.count,
            "seconds of simulation": round(time.perf_counter() - since, 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, help="that one expert takes one machine")
    options = parser.parse_args()
    crowd = SMALL if options.small else Crowd()
    if options.hours:
        crowd = crowd._replace(hours=options.hours)
    show(measure(crowd, options.seed), options.json)


if __name__ == "__main__":
    main()
