"""Kill a training again and again: forks for every attempt, prints one JSON line."""

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from atoll.errors import EXIT_RUN_AGAIN, Interrupted
from atoll.runs import Run
from atoll.train import jobs
from tests.holding import held

with contextlib.suppress(ImportError):
    # pyarrow loads it behind the scenes wherever it is installed; once for all attempts is enough.
    importlib.import_module("pandas")


def attempt(run: Run) -> int:
    """Train in a process of its own; gives its id."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            jobs.expert(run, 0)
            code = 0
        except Interrupted:
            code = EXIT_RUN_AGAIN
        finally:
            os._exit(code)
    return process


def steps_done(run: Run) -> int:
    metrics = run.expert(0).path / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def listens(process: int, number: int) -> bool:
    """Whether a process has said what a signal means to it: before, it just ends (known on Linux only)."""
    status = Path(f"/proc/{process}/status")
    if not status.is_file():
        return True
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def main(folder: str, how: str, kills: str) -> None:
    torch.set_num_threads(1)
    run = Run.open(Path(folder))
    moments = random.Random(0)
    number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}[how]
    codes, last = [], run.config.expert.steps - 1
    with held("expert-00", last):  # however late the signal is, the training is not over
        for target in sorted(moments.randrange(last - 4) for _ in range(int(kills))):
            process = attempt(run)
            while steps_done(run) < target or not (how == "kill" or listens(process, number)):
                time.sleep(0.0005)
            time.sleep(moments.random() * 0.02)
            os.kill(process, number)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    process = attempt(run)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    sys.stdout.write(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
