"""What several processes of tests have in common, made once while tests are collected.

That is a tiny run that is finished, and the process that commands are forked from. Whoever runs tests alone
makes both when a test needs them.
"""

import contextlib
import importlib
import os
import sys
import warnings
from pathlib import Path

import pytest

from atoll import config
from atoll.launch import warm
from atoll.runs import Run
from tests import commands, hasty

TINY = """
name = "tiny"
[data]
source = "fashion-5k"
[partition]
clusters = 3
fine = 12
[expert]
width = 16
depth = 1
heads = 2
patch = [7, 7]
steps = 10
batch = 8
lr = 1e-2
log_every = 2
save_every = 3
compile = "off"
[router]
width = 16
depth = 1
heads = 2
patch = [7, 7]
steps = 6
batch = 8
lr = 1e-2
compile = "off"
[sample]
num = 6
steps = 3
precision = "float32"
"""


def customized(folder: Path) -> str:
    """Where processes find modules that are to wait no longer than tests do: see `tests.hasty`."""
    (folder / "sitecustomize.py").write_text(hasty.CUSTOMIZE)
    paths = [str(folder), str(commands.ROOT), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def prepare(folder: Path) -> Path:
    """The tiny recipe's data and clusters."""
    from atoll.data import encode, partition

    (folder / "tiny.toml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_RUNS", str(folder))
        run = Run.create(config.load(folder / "tiny.toml"), folder / "tiny.toml")
    encode.prepare(run)
    partition.partition(run)
    return run.path


def train(path: Path) -> None:
    """Its experts and its router."""
    from atoll.train import jobs

    run = Run.open(path)
    for k in range(run.config.partition.clusters):
        jobs.expert(run, k)
    jobs.router(run)


LATER = ("torch._dynamo", "pandas", "matplotlib.figure", "matplotlib.backends.backend_svg")
LATER += ("transformers.models.bert.modeling_bert",)
"""What libraries and tests import on their way, and each process would load for itself."""


def load() -> None:
    """All of that, as far as it is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's
        for name in LATER:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


class Beforehand:
    """For so many processes; begun before tests are collected, and ended before these are forked."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        os.environ["PYTHONPATH"] = customized(folder)
        self._heirs = [commands.parent() for _ in range(number)] if warm.FORKS else []
        self._tiny = commands.Command([folder], module="tests.beforehand") if warm.FORKS else None

    def tiny(self) -> Path | None:
        """The finished run, which nobody may write to; until it is there, something is loaded."""
        load()
        if self._tiny is not None:
            _, problem = self._tiny.communicate()
            assert self._tiny.returncode == 0, problem
        return self._folder / "tiny" if self._tiny is not None else None

    def hand_over(self, number: int) -> None:
        """In one of the processes: what is its own stays."""
        for index, heir in enumerate(self._heirs):
            if index != number:
                heir.close()
        if self._heirs:
            commands.inherit(self._heirs[number])

    def close(self) -> None:
        """In the one that has forked them."""
        for heir in self._heirs:
            heir.close()
        commands.close()


if __name__ == "__main__":
    train(prepare(Path(sys.argv[1])))
