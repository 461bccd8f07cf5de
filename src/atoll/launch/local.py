"""Jobs as separate processes of this machine, as many at once as it carries."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import IO

from atoll.launch import machine, process, warm
from atoll.launch.engine import Place
from atoll.launch.job import Job, JobStatus
from atoll.runs.graph import Node


class Local:
    """This machine."""

    seconds = 0.2
    stopped = "asked to stop; every job has saved its state: run the same command again"

    def __init__(self, place: Place) -> None:
        self.launch = place.launch
        self._running: dict[str, tuple[process.Worker, IO[bytes], int]] = {}
        self._jobs = 1
        self._parents = warm.Parents()

    def room(self, ready: int, running: int) -> int:
        """How many can be started now; those that run share cores and GPUs with as many as there are."""
        self._jobs = max(1, ready + running)
        return max(0, machine.share(self._jobs, self.launch).at_once - running)

    def start(self, job: Job) -> None:
        """Start a process with its share of cores and GPUs.

        With one thread and no GPU it is forked from one that has loaded what it needs: such jobs are short,
        and no library has started threads there.
        """
        taken = {slot for _, _, slot in self._running.values()}
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        log = job.log.open("wb")
        share = machine.share(self._jobs, self.launch, job.useful)
        own = share.variables(slot)
        alone = not share.gpus and share.threads == 1
        parent = self._parents.of(process.environment(job.spec, own)) if alone else None
        running = process.fork(job.spec, parent, log=log, variables=own, heir=bool(self.launch.store))
        self._running[job.name] = running, log, slot

    def poll(self, status: JobStatus) -> None:
        """Note whether a process has ended."""
        running, log, _ = self._running[status.name]
        status.running = True
        if running.poll() is not None:
            status.code = running.returncode
            log.close()
            del self._running[status.name]

    def stop(self, jobs: Sequence[Job]) -> None:
        """Ask every process to save and stop, and wait for it."""
        processes = [self._running[job.name] for job in jobs if job.name in self._running]
        for running, _, _ in processes:
            running.terminate()
        for running, log, _ in processes:
            running.wait()
            log.close()

    def share(self, node: Node) -> None:
        """Here is one machine."""

    def close(self) -> None:
        """Let go of the processes that jobs are forked from."""
        self._parents.close()


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Local]:
    """This machine as an engine."""
    with contextlib.closing(Local(place)) as engine:
        yield engine
