"""`atoll` on machines that have only a bucket in common, as real processes."""

import os
import subprocess
import sys
import time

from atoll import config
from atoll.runs import Run, read_lines
from atoll.storage.mirror import Mirror
from atoll.storage.pointer import newest

LONG = ["expert.steps=1000", "expert.log_every=1", "expert.save_every=10"]
"""Experts that can be caught while they train."""


class Machines:
    def __init__(self, store, recipe, folder):
        self.store, self.recipe, self.folder = store, recipe, folder
        self.settings = [f"launch.store={store.address}", "launch.lease=4", "launch.at_once=2"]
        self.started = []

    def start(self, name, *command, settings=(), **environment):
        sets = [part for text in (*self.settings, *settings) for part in ("--set", text)]
        process = subprocess.Popen(
            [sys.executable, "-m", "atoll", *command, str(self.recipe), *sets],
            env={**os.environ, "ATOLL_RUNS": str(self.folder / name), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def close(self):
        """End what a test that failed has left behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            if not process.stdout.closed:
                process.communicate()

    def atoll(self, name, *command, code=0, **options):
        process = self.start(name, *command, **options)
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, err
        return out, err

    def run(self, name, *settings):
        resolved = config.load(self.recipe, [*self.settings, *settings])
        return Run(self.folder / name / "tiny", resolved)

    def seed(self, source, *settings, trained=False):
        """Put the data and clusters of a prepared run into the bucket, as the stages would."""
        origin = Run(source, self.run("seed", *settings).config)
        mirror = Mirror.of(origin)
        mirror.open(lead=False)
        mirror.store.write("resolved.json", origin.config.model_dump_json().encode())
        mirror.upload(origin.data)
        mirror.upload(origin.partition)
        for stage in (*(origin.expert(index) for index in range(3)), origin.router) if trained else ():
            mirror.upload(stage)
        self.store.proxy.reset()


def files_of(run):
    return [run.expert(k).record.files for k in range(3)] + [run.router.record.files]


def events(run):
    return read_lines(run.path / "events.jsonl")


def wait_for(condition, process):
    for _ in range(3000):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("it does not get on")


def steps_uploaded(mirror, index):
    pointer = newest(mirror.store, f"experts/{index:02d}")
    return pointer.states[0].step if pointer and pointer.states else 0


def children(pid):
    """The processes that a process has started and that are at work."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True)
    found = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, state in found if not state.startswith("Z")]
