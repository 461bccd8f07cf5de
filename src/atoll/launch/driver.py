"""From a recipe to a finished run: what is left to do is found in the graph, and every job gets an engine."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from atoll import config, plan
from atoll.errors import AtollError, Interrupted, StaleError
from atoll.launch import engine as engines
from atoll.launch import leased
from atoll.launch.engine import Engine, Place
from atoll.launch.job import Job, JobSpec, JobStatus, report
from atoll.launch.noted import Noted
from atoll.launch.work import work
from atoll.runs import Run, stop_requests
from atoll.runs.graph import Node, Progress
from atoll.runs.known import known
from atoll.runs.survey import Survey, survey
from atoll.storage.mirror import Mirror
from atoll.storage.progress import step_here

logger = logging.getLogger(__name__)

Watch = Callable[[Sequence[JobStatus]], None]
"""Is shown all jobs, again and again."""


class Screen(NamedTuple):
    """Where a person sees what is going on."""

    table: Callable[[], AbstractContextManager[Watch]]
    """Of jobs that run elsewhere."""
    bar: Callable[[], AbstractContextManager[Progress | None]]
    """Of what is made here."""


def drive(run: Run, on: str, screen: Screen, *, start_over: bool = False) -> None:
    """Make every stage that is not done yet."""
    engines.check(on)
    with leased.driving(run) if run.config.launch.store else contextlib.nullcontext():
        if run.config.launch.store:
            leased.look(run)
        left = settle(run, start_over)
        if left:
            run.event("making", stages=[node.name for node in left], on=on)
            with engines.opened(on, Place(run.path, run.config.launch, run)) as engine:
                _noted(run, lambda: _make_all(run, left, engine, screen))
            run.event("finished")


def _noted(run: Run, make: Callable[[], None]) -> None:
    """Write down why something ends early, for whoever reads along."""
    try:
        make()
    except (AtollError, Interrupted) as error:
        run.event("interrupted" if isinstance(error, Interrupted) else "failed", problem=str(error))
        raise


def settle(run: Run, start_over: bool) -> list[Node]:
    """What is left to do, after what was made from other inputs is cleared away, if that is allowed."""
    state = survey(run)
    outdated = [node for node in state.stale if not node.kind.again]
    if outdated and not start_over:
        raise StaleError(_refusal(state, outdated))
    if state.stale:
        if outdated:
            logger.info("%s", _announcement(state))
        clear(run, state.stale)
        state = survey(run)
    return state.left


def _refusal(state: Survey, stale: Sequence[Node]) -> str:
    first = state.why[stale[0].name]
    again, kept = _names(state.stale), _names(state.done)
    rest = f"; {kept} would stay" if kept else ""
    return f"{first}; add --start-over to make {again} again{rest}, or give the recipe another name"


def _announcement(state: Survey) -> str:
    kept = _names(state.done)
    return f"Making again: {_names(state.stale)}" + (f" (staying as they are: {kept})" if kept else "")


def _names(nodes: Sequence[Node]) -> str:
    """Names of stages; of several of a kind, the first and the last."""
    words: dict[str, list[int]] = {}
    for node in nodes:
        words.setdefault(node.kind.name, []).append(node.index)
    return ", ".join(
        f"{name}s {indices[0]} to {indices[-1]}"
        if len(indices) > 1 and indices == list(range(indices[0], indices[-1] + 1))
        else ", ".join(node.name for node in nodes if node.kind.name == name)
        for name, indices in words.items()
    )


def clear(run: Run, nodes: Sequence[Node]) -> None:
    """Throw stages away, here and in the store: the only place where a run starts over."""
    mirror = Mirror.of(run) if run.config.launch.store else None
    for node in reversed(nodes):
        if mirror is None or node.kind.again:
            node.stage.clear()
        else:
            mirror.clear(node.stage)


def make(run: Run, nodes: Sequence[Node], screen: Screen, *, start_over: bool = False) -> None:
    """Make some stages here, one after the other, as commands for one stage do."""
    if start_over:
        clear(run, nodes)
    for node in nodes:
        for before in node.inputs:
            if before.kind.adopts and not before.stage.done:
                work(before)
        with screen.bar() as progress:
            work(node, progress)


def _make_all(run: Run, left: Sequence[Node], engine: Engine, screen: Screen) -> None:
    """Alternate between what is made here and what runs on the engine, until nothing is left."""
    waiting = list(left)
    while waiting:
        names = {node.name for node in waiting}
        ready = [node for node in waiting if not names.intersection(one.name for one in node.inputs)]
        here = [node for node in ready if not node.is_job]
        # What a run begins with comes first: if it is not there, nobody has read the data for it.
        here.sort(key=lambda node: not node.kind.adopts)
        if here:
            for node in here:
                _make_here(node, engine, screen)
                waiting.remove(node)
                _check(run)
            continue
        jobs = [node for node in waiting if node.is_job and not _needs_driver(node, waiting)]
        with screen.table() as watch:
            run_jobs(jobs_of(jobs), engine, Noted(run, watch))
        waiting = [node for node in waiting if node not in jobs]


def _check(run: Run) -> None:
    """Once the samples are known for certain, what cannot work is told once, and not by every job."""
    if run.data.done:
        config.check(run.config, known(run.data.contents))


def _needs_driver(node: Node, waiting: Sequence[Node]) -> bool:
    """Whether something that is made here has to come before."""
    before = [one for one in waiting if one.name in {each.name for each in node.inputs}]
    return any(not one.is_job or _needs_driver(one, waiting) for one in before)


def _make_here(node: Node, engine: Engine, screen: Screen) -> None:
    remote = bool(node.run.config.launch.store)
    if node.kind.parts:
        engine.share(node)
    if remote and node.kind.again:
        leased.download(node)
    with screen.bar() as progress:
        work(node, progress)
    if remote and node.kind.again:
        leased.upload(node)


def jobs_of(nodes: Sequence[Node]) -> list[Job]:
    """Stages of one run as jobs."""
    run = nodes[0].run
    facts = known(run.data.contents) if run.data.done else config.Facts()
    planned = plan.plan(run.config, facts)["jobs"]
    return [_job(node, facts, planned.get(node.name)) for node in nodes]


def _job(node: Node, facts: config.Facts, counted: Mapping[str, Any] | None) -> Job:
    """A stage as a job; what is known of the samples and what the plan counts say what it needs."""
    run, training = node.run, node.training
    network = training if isinstance(training, config.NetworkConfig) else None
    return Job(
        node.name,
        JobSpec.of(node.name, run.config, run.path.resolve()),
        node.stage.path,
        steps=training.steps if training else 0,
        batch=training.batch if training else 0,
        memory=int(counted["memory_bytes"]["total"]) if counted else 0,
        useful=plan.useful_threads(run.config, network, training.batch, facts) if network and training else 1,
        gpu=training is not None or node.kind.gpu,
        after=frozenset(one.name for one in node.inputs),
        is_done=lambda: _is_done(node),
        saved_step=lambda: _saved_step(node),
    )


def _is_done(node: Node) -> bool:
    if node.run.config.launch.store:
        mirror = Mirror.of(node.run)
        for one in (*node.reads, *node.records, node):
            if not one.stage.done:
                mirror.download_record(one.stage)
    return node.stage.current(node.made_from())


def _saved_step(node: Node) -> int:
    """Of the state that a job goes on from: the store's, where there is one, or this folder's."""
    if node.run.config.launch.store:
        return Mirror.of(node.run).saved_step(node.stage)
    return max(0, step_here(node.stage))


@dataclass
class _Queue:
    """Jobs on their way: those that wait for others, those that can be started, those that run."""

    statuses: dict[str, JobStatus]

    @property
    def running(self) -> list[JobStatus]:
        return [status for status in self.statuses.values() if status.started and status.code is None]

    def ready(self) -> list[JobStatus]:
        """Those that can be started: nothing that they wait for is unfinished, or has failed."""
        unfinished = {name for name, status in self.statuses.items() if status.code != 0}
        waiting = [status for status in self.statuses.values() if not status.started and status.code is None]
        free = [status for status in waiting if not status.job.after & unfinished]
        for status in free:
            if status.job.is_done():
                status.started, status.code = True, 0
        return [status for status in free if status.code is None]


def run_jobs(jobs: Sequence[Job], engine: Engine, watch: Watch) -> None:
    """Run every job to its end; one that fails is reported after the others have finished."""
    queue = _Queue({job.name: JobStatus(job) for job in jobs})
    statuses = list(queue.statuses.values())
    with stop_requests() as signalled:
        try:
            while True:
                ready = queue.ready()
                if not ready and not queue.running:
                    break
                for status in ready[: engine.room(len(ready), len(queue.running))]:
                    status.begin()
                    engine.start(status.job)
                time.sleep(engine.seconds)
                for status in queue.running:
                    engine.poll(status)
                watch(statuses)
                if signalled():
                    raise Interrupted(engine.stopped)
        except BaseException:
            engine.stop([status.job for status in queue.running])
            raise
    report(statuses)
