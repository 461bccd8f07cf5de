"""`atoll` on machines that have only a bucket in common, as real processes."""

import time
from pathlib import Path

from atoll import config
from atoll.launch import forking
from atoll.runs import Run, graph, read_lines
from atoll.storage.mirror import Mirror
from atoll.storage.pointer import newest
from tests import commands

LONG = ["expert.steps=40", "expert.log_every=1", "expert.save_every=10"]
"""Experts that are caught while they train: see `tests.holding`."""


class Machines:
    def __init__(self, store, recipe, folder):
        self.store, self.recipe, self.folder = store, recipe, folder
        self.settings = [f"launch.store={store.address}", "launch.lease=600", "launch.at_once=2"]
        self.started = []

    def start(self, name, *command, settings=(), **environment):
        sets = [part for text in (*self.settings, *settings) for part in ("--set", text)]
        place = {"ATOLL_RUNS": str(self.folder / name), **environment}
        process = commands.Command([*command, self.recipe, *sets], place)
        self.started.append(process)
        return process

    def close(self):
        """End what a test that failed has left behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def atoll(self, name, *command, code=0, **options):
        process = self.start(name, *command, **options)
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, err
        return out, err

    def run(self, name, *settings):
        resolved = config.load(self.recipe, [*self.settings, *settings])
        return Run(self.folder / name / "tiny", resolved)

    def seed(self, source, *settings, trained=()):
        """Put the data and clusters of a prepared run into the bucket, as the stages would, and these."""
        origin = Run(source, self.run("seed", *settings).config)
        mirror = Mirror.of(origin)
        mirror.open(lead=False)
        mirror.store.write("resolved.json", origin.config.model_dump_json().encode())
        mirror.upload(origin.data)
        mirror.upload(origin.partition)
        for name in trained:
            mirror.upload(graph.node(origin, name).stage)
        self.store.proxy.reset()


TRAINED = ["expert 0", "expert 1", "expert 2", "router"]


def files_of(run):
    clusters = range(run.config.partition.clusters)
    return [run.expert(k).record.files for k in clusters] + [run.router.record.files]


def events(run):
    return read_lines(run.path / "events.jsonl")


def wait_for(condition, process):
    for _ in range(24000):  # no measure of time: whatever does not get on at all must end
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it does not get on")


def steps_uploaded(mirror, index):
    pointer = newest(mirror.store, f"experts/{index:02d}")
    return pointer.states[0].step if pointer and pointer.states else 0


def descendants(pid):
    """The processes that a process has started and that are at work, and theirs."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, own) if _works(child) for each in (child, *descendants(child))]


def _works(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    """Those of them that do the work: not whom they are forked from."""
    return [one for one in descendants(pid) if _name(one) not in (forking.NAME, "")]


def _name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
