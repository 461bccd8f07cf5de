"""`atoll join --test`: is this machine fit for work? A unit done twice, checked as the coordinator would.

Nothing is handed in, so nothing is earned, and the unit goes back as it was.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.net import admitting, units
from atoll.net.home import Held, Home
from atoll.net.joining import Joining, at_work
from atoll.net.protocol import File, LeaseOffer, Numerics, Result, Unit
from atoll.net.turn import Released, Turn
from atoll.net.work import links_of, read_chain
from atoll.net.worker import Worker
from atoll.runs import read_json, stamped

SECONDS = 30.0
"""How much of a training is tried, by the measured speed."""


@dataclass(frozen=True)
class Try:
    """What came of a unit once."""

    files: dict[str, str]
    """Digests by path; of files that tell the time, nothing."""
    chain: tuple[str, ...]
    faults: tuple[str, ...]
    """What a coordinator would refuse it for."""


def trial(joining: Joining) -> dict[str, Any]:
    """Do one unit twice, check it and compare."""
    with at_work(joining) as worker:
        offer = worker.machine.client.lease(worker.capabilities, secrets.token_hex(16))
        if not isinstance(offer, LeaseOffer):
            return {"ended": offer.reason, "same": None, "sentence": f"No unit to try: {offer.sentence}."}
        offer = offer.model_copy(update={"unit": shorter(offer.unit, worker.capabilities.speed)})
        try:
            tries = [_once(worker, offer, f"time {number} of 2, on trial") for number in (1, 2)]
        except Released:
            return {"ended": "asked to stop", "same": None, "sentence": "Stopped before it was done twice."}
        finally:
            held = worker.machine.home.hold(offer, stamped(worker.resolved))
            worker.machine.give_back(held, "a trial", failed=False)
    same, faults = tries[0] == tries[1], list(tries[1].faults)
    facts = {"same": same, "unit": offer.unit.name, "files": len(tries[0].files), "faults": faults}
    return {"ended": "trial", **facts, "sentence": _sentence(same, faults)}


def shorter(unit: Unit, speed: float) -> Unit:
    """As much of a training as a machine of this speed does in a while; nobody waits hours for a trial."""
    if unit.role != "train" or not unit.work or not speed:
        return unit
    return units.shortened(unit, int((unit.last - unit.first) * SECONDS * speed / unit.work))


def _once(worker: Worker, offer: LeaseOffer, words: str) -> Try:
    held = worker.machine.home.hold(offer, stamped(worker.resolved))
    worker.machine.tell.news(f"{offer.unit.name}: {words}")
    turn = Turn(worker.machine, held, hands_on=False)
    with turn.beating():
        worker.make(held, turn, paid=False)
    made = tried(held, worker.machine.home)
    held.drop()
    return made


def tried(held: Held, home: Home) -> Try:
    """What a job made, and what is wrong with it."""
    unit, made = held.offer.unit, read_json(held.made)
    chain = links_of(unit, read_chain(held.chain))
    outputs = tuple(File.model_validate(one) for one in made["outputs"])
    made_here = {file.sha256: held.run / file.path for file in outputs}
    result = Result(unit=unit.digest, outputs=outputs, chain=chain, numerics=Numerics())

    def where(sha256: str) -> Path:
        return made_here.get(sha256, home.place(sha256))

    faults = admitting.of_files(where, unit, result, strict=True).faults
    files = {file.path: "" if file.path.endswith(".jsonl") else file.sha256 for file in outputs}
    return Try(files, chain, tuple(faults.values()))


def _sentence(same: bool, faults: list[str]) -> str:
    if faults:
        return f"A coordinator would refuse this: {faults[0]}."
    return "Both times the same bits." if same else "The two differ: do not rely on this machine."
