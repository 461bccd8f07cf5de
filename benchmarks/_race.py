"""Contenders that train in processes of their own: how large, how fast, and who is best."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Size:
    """What is trained."""

    width: int
    depth: int
    heads: int
    patch: int
    shape: tuple[int, ...]
    threads: int
    batch: int = 16
    classes: int = 1000
    device: str = "cpu"


SIZES = {
    "middle": Size(384, 6, 6, 2, (4, 32, 32), len(os.sched_getaffinity(0))),
    "demo": Size(96, 4, 4, 4, (1, 28, 28), 1),
}


class Worker:
    """A process that takes steps when told."""

    def __init__(self, name: str, size: Size, precision: str = "float32", compiled: bool = False) -> None:
        arguments = [name, json.dumps(asdict(size)), precision, str(int(compiled))]
        command = [sys.executable, "-m", "benchmarks.train", "--worker", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": str(size.threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.best, self.bytes, self.first = float("inf"), 0, 0.0

    def ask(self, line: str) -> Any:
        """One line out, one answer back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("a contender failed; its reason is above")
        return json.loads(answer)

    def warm_up(self) -> None:
        """The first step, which compiles, and another."""
        self.first = self.ask("1")["seconds"]
        self.ask("1")

    def measure(self, steps: int) -> None:
        """Take steps and remember the best."""
        answer = self.ask(str(steps))
        self.best, self.bytes = min(self.best, answer["seconds"]), answer["bytes"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Finish(NamedTuple):
    """How a contender did."""

    rate: float
    """Samples per second."""
    bytes: int
    """Of a card's memory."""
    compile_seconds: float
    """The first step less an ordinary one."""


def race(
    size: Size, contenders: dict[str, tuple[str, str, bool]], rounds: int, steps: int
) -> dict[str, Finish]:
    """Each measured after a warm-up, in turn; on a card one after the other, since each would fill it.

    One that cannot run is left out.
    """
    together = size.device == "cpu"
    groups = [contenders] if together else [{label: how} for label, how in contenders.items()]
    return {label: finish for group in groups for label, finish in _race(size, group, rounds, steps).items()}


def _race(
    size: Size, contenders: dict[str, tuple[str, str, bool]], rounds: int, steps: int
) -> dict[str, Finish]:
    workers = {label: Worker(name, size, *how) for label, (name, *how) in contenders.items()}
    try:
        for label in list(workers):
            try:
                workers[label].warm_up()
            except (RuntimeError, BrokenPipeError):
                workers.pop(label).close()
        for _ in range(rounds):
            for worker in workers.values():
                worker.measure(steps)
    finally:
        for worker in workers.values():
            worker.close()
    return {
        label: Finish(size.batch / worker.best, worker.bytes, worker.first - worker.best)
        for label, worker in workers.items()
    }


def fastest(finished: Mapping[str, Finish], name: str) -> str:
    """The best setting of a contender."""
    return max(
        (label for label in finished if label.startswith(name)), key=lambda label: finished[label].rate
    )
