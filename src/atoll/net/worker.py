"""The loop of a worker: reconcile, lease, download, do one unit sealed, upload as it goes, submit.

It may be killed at any moment: what it holds is written down before anything is done for it, and the next
start asks the coordinator what to do with it.
"""

import contextlib
import math
import random
import shutil
from dataclasses import dataclass, field
from typing import Any

from atoll.errors import AtollError, CorruptError, Interrupted, is_full
from atoll.net import holding, tiles, tracing, vouching
from atoll.net.client import Rate, Refused
from atoll.net.home import RESULT, Held
from atoll.net.protocol import Capabilities, LeaseOffer, Receipt, Reconcile, Refusal, Result, Submission
from atoll.net.protocol import Held as HeldMessage
from atoll.net.showing import Showcase
from atoll.net.sources import LogSource
from atoll.net.statements import Signer
from atoll.net.telling import counted
from atoll.net.turn import JITTER, POLL, Machine, Released, Turn
from atoll.net.witness import Memory
from atoll.net.work import links_of, read_chain
from atoll.runs import read_json, stamped, write_json
from atoll.storage.patience import Fault

WATCH = 600.0
"""Seconds between two looks at the log, and between two words about the files that are here."""
FULL = ("no space left", "File too large")
"""What a job says that found no room: on the disk, or within what its owner allows."""
ROOM = 60.0
"""Seconds after which a machine whose disk was full asks for work again."""
HOLDS = 64
"""Files, of those that were needed last, for which work is preferred that reads them."""


@dataclass
class Worker:
    """One machine at work for one coordinator."""

    machine: Machine
    resolved: dict[str, Any]
    """The run's settings, as its manifest has them."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    """Of what was handed in, by submission."""
    memory: Memory | None = None
    """The log as it was seen last."""
    _watched: float = -math.inf
    _told: float = -math.inf
    _refused: bool = False
    _full: bool = False

    @property
    def showcase(self) -> Showcase:
        """States of what was handed in."""
        return Showcase(self.machine.home)

    def run(self, once: bool = False) -> str:
        """Work until the run is finished or somebody asks to stop; why it ended."""
        held, self.machine.meanwhile = self.reconcile(), self.follow
        while not self.machine.stopping():
            if not held and (reason := self.machine.reason_to_wait()):
                self.machine.tell.now(f"waiting: {reason}")
                self.machine.clock.sleep(min(60.0, POLL * 50))
                continue
            self.watch()
            self.restore()
            answer = held.pop(0) if held else self._lease()
            if isinstance(answer, Refusal):
                self.follow()
                if answer.reason in ("finished", "banned", "update", "other-run"):
                    self.machine.tell.news(answer.sentence)
                    return answer.reason
                self._wait(answer)
                continue
            with contextlib.suppress(Released):
                self.do(answer)
            self.follow()
            if once:
                return "once"
            if self._full:  # nothing else would fit either; somebody must look
                self._full = False
                self._wait(Refusal(reason="too-little-disk", sentence="free some disk", retry_after_s=ROOM))
        return "asked to stop"

    def reconcile(self) -> list[Held]:
        """What to go on with of what an earlier start has left here; the rest is handed in or dropped."""
        run = self.machine.client.run
        leases = [
            one for one in self.machine.home.leases() if one.offer.unit.run == run
        ]  # others keep theirs
        if not leases:
            return []
        message = Reconcile(
            leases=tuple(
                HeldMessage(lease=one.offer.lease, fence=one.offer.fence, done=one.done) for one in leases
            )
        )
        advice = self.machine.client.reconcile(message).leases
        kept: list[Held] = []
        for one in leases:
            word = advice.get(one.offer.lease, "drop")
            self.machine.tell.news(f"{one.offer.unit.name}: held from before; the coordinator says {word}")
            if word == "submit":
                self._submit(one)
            elif word == "keep":
                kept.append(one)
            else:
                one.drop()
        return kept

    def _lease(self) -> Held | Refusal:
        if not self._refused:  # who asks again and again says only why it got nothing
            self.machine.tell.now("asking for work")
        home = self.machine.home
        up, down = (self._allowed(rate) for rate in (self.machine.client.up, self.machine.client.down))
        measured = {"holds": tuple(home.files())[:HOLDS], "up": up, "down": down}
        able = self.capabilities.model_copy(update=measured)
        answer = self.machine.client.lease(able, home.attempt())
        self._refused = isinstance(answer, Refusal)
        held = home.hold(answer, stamped(self.resolved)) if isinstance(answer, LeaseOffer) else answer
        home.answered()
        return held

    def _allowed(self, rate: Rate) -> float:
        """Mbit/s at which files move: as measured, at most what its owner allows; 0 where nobody knows."""
        most = self.machine.limits.mbit
        return min(rate.mbit, most) if rate.mbit and most else rate.mbit or most

    def _wait(self, refusal: Refusal) -> None:
        """Until it is time to ask again; a word now and then, and at once when asked to stop."""
        until = self.machine.clock.now() + refusal.retry_after_s * random.uniform(1 - JITTER, 1 + JITTER)
        while self.machine.clock.now() < until and not self.machine.stopping():
            left = until - self.machine.clock.now()
            self.machine.tell.now(f"no work ({refusal.sentence}): asking again in {left:.0f} s")
            self.machine.clock.sleep(min(1.0, max(POLL, until - self.machine.clock.now())))

    def do(self, held: Held) -> None:
        """Do the unit of a lease, from wherever it is; `Released` where the lease ends before that."""
        try:
            turn = Turn(self.machine, held)
            with turn.beating():
                self.make(held, turn)
                self._upload(held, self._result(held))
            self._submit(held)
        except Released:
            raise
        except (AtollError, OSError) as error:
            words = " ".join(str(error).split())
            full = is_full(error) if isinstance(error, OSError) else any(word in words for word in FULL)
            reason = "no space left on this machine" if full else words
            self.machine.give_back(held, reason, failed=not full)
            self._full = full
            raise Released from None

    def make(self, held: Held, turn: Turn, *, paid: bool = True) -> None:
        """Everything but to hand it in."""
        unit = held.offer.unit
        if not held.made.is_file():
            self._download(held, turn)
            pay = f", for {counted(unit.price / 1000, 'credit')}" if unit.price and paid else ""
            self.machine.tell.news(f"{unit.name}: at work{turn.going_on}{pay}")
            turn.work()

    def _download(self, held: Held, turn: "Turn") -> None:
        files = held.inputs
        missing = [file for file in files if not self.machine.home.place(file.sha256).is_file()]
        total = sum(file.size for file in missing)
        room = self.machine.limits.room(
            self.machine.home.folder, shutil.disk_usage(self.machine.home.folder).free
        )
        self.machine.home.forget(max(0, room - total), files)
        done = 0
        for file in missing:
            self.machine.tell.now(
                f"downloading: {done / 1e6:.1f} of {total / 1e6:.1f} MB for {held.offer.unit.name}"
            )
            self.machine.client.download(file, self.machine.home.place(file.sha256))
            done += file.size
            turn.check()
        held.lay_out(self.machine.home)

    def _result(self, held: Held) -> Result:
        """What the job says that it made, with the chain of its states."""
        unit, made = held.offer.unit, read_json(held.made)
        chain = links_of(unit, read_chain(held.chain))
        result = Result.model_validate(
            {**made, "unit": unit.digest, "chain": chain, "steps": unit.last - unit.first}
        )
        write_json(held.folder / RESULT, result.model_dump(mode="json"))
        return result

    def _upload(self, held: Held, result: Result) -> None:
        total = sum(file.size for file in result.outputs)
        for file in result.outputs:
            self.machine.tell.now(f"uploading: {total / 1e6:.1f} MB of {held.offer.unit.name}")
            self.machine.client.upload(held.run / file.path, file)
            self.machine.home.keep(held.run / file.path, file)

    def _submit(self, held: Held) -> None:
        """Hand in a result; the coordinator's answer is what counts, and it is said."""
        offer, result = held.offer, held.result()
        message = self._signed(held, result)
        try:
            receipt = self.machine.client.submit(offer.lease, message)
        except Refused as refusal:
            if refusal.code == "missing":  # it has lost files, or another machine's were first
                self._upload(held, result)
                receipt = self.machine.client.submit(offer.lease, message)
            else:
                self.machine.tell.news(f"{offer.unit.name}: not taken: {refusal}")
                held.drop()
                return
        self.receipts[receipt.submission] = receipt
        self.machine.home.keep_promise(receipt)
        self.machine.home.keep_rates(self.machine.client.up, self.machine.client.down)
        self._say(offer.unit.name, receipt)
        if not receipt.settled:
            self.showcase.keep(held, result, receipt.submission)
        held.drop()

    def _signed(self, held: Held, result: Result) -> Submission:
        """A result with this device's word for it."""
        client, offer = self.machine.client, held.offer
        signer = Signer(client.key, client.run)
        signed = (
            vouching.handed_in(result, offer.lease, offer.fence, signer, client.now()) if client.run else ""
        )
        traces = tracing.traces_of(offer.unit, read_chain(held.chain.with_name(tracing.TRACES)))
        return Submission(fence=offer.fence, result=result, signed=signed, traces=traces)

    def watch(self) -> None:
        """Look whether the log goes on from what was seen before; a CorruptError if it does not."""
        now = self.machine.clock.now()
        if self.memory is None or now < self._watched + WATCH:
            return
        self._watched = now
        client = self.machine.client
        try:
            if self.memory.checkpoint is not None or client.log(tiles.CHECKPOINT) is not None:
                self.memory.check(LogSource(client.addresses[0], client.log))
        except CorruptError:
            raise
        except (AtollError, Fault):
            return  # it is away: another time

    def restore(self) -> None:
        """Send what the coordinator has lost of what is here; asked now and then."""
        now = self.machine.clock.now()
        if now >= self._told + WATCH:
            self._told = now
            holding.give(self.machine)

    def _say(self, name: str, receipt: Receipt) -> None:
        paid = receipt.price and receipt.state == "accepted"
        worth = f", {counted(receipt.price / 1000, 'credit')}" if paid else ""
        reason = f" ({receipt.reason})" if receipt.reason else ""
        here = self.machine.client.addresses[0] if receipt.url.startswith("/") else ""
        page = f" {here}{receipt.url}" if receipt.url else ""
        self.machine.tell.news(f"{name}: {receipt.state}{worth}{reason}{page}")

    def follow(self) -> None:
        """Ask what has become of what was handed in, say what is new, show the states that are asked for."""
        for number in {**self.receipts, **dict.fromkeys(self.showcase.submissions())}:
            before = self.receipts.get(number)
            if before is not None and before.settled:
                continue
            with contextlib.suppress(AtollError, Interrupted, OSError):
                receipt = self.machine.client.submission(number)
                if before is None or receipt.state != before.state:
                    self._say(f"submission {number[:8]}", receipt)
                self.receipts[number] = receipt
                if receipt.settled:
                    self.showcase.forget(number)
                elif steps := self.showcase.show(self.machine.client, receipt):
                    words = " and ".join(map(str, steps))
                    self.machine.tell.news(f"submission {number[:8]}: states of steps {words} are shown")
