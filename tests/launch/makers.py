"""Stages that take no time to make, for tests of whoever has them made."""

import os
import signal
import time
from pathlib import Path

from atoll.errors import ConfigError, Interrupted
from atoll.runs import Run, Stage, stop_requests
from atoll.runs.graph import Kind
from atoll.runs.records import Contents
from tests import hasty

CUSTOMIZE = f"""
{hasty.CUSTOMIZE}
def play(graph):
    from tests.launch.makers import PLAY
    graph.KINDS = PLAY

hasty.LATER["atoll.runs.graph"] = play
"""


def words(run: Run) -> dict[str, str]:
    """What each stage is to do: `recipe.prompts` holds `name=word`."""
    return dict(text.split("=", 1) for text in run.config.sample.prompts)


def made_from(run: Run, index: int) -> dict[str, str]:
    return {"seed": str(run.config.seed)}


def _stage(run: Run, name: str) -> Stage:
    return run.stage(*name.split())


def play(run: Run, name: str) -> Stage:
    """Do what the recipe says: end, fail, be killed, save and stop, wait to be stopped and perhaps go on."""
    stage, word = _stage(run, name), words(run).get(name, "end")
    if not stage.begin(made_from(run, 0)):
        return stage
    (stage.path / "threads").write_text(os.environ.get("OMP_NUM_THREADS", ""))
    (stage.path / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if word == "fail":
        raise ConfigError(f"{name} broke")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "save" and not (stage.path / "saved").is_file():
        (stage.path / "saved").write_text("once")
        raise Interrupted("saved")
    if word == "wait" or (word == "go on" and not (stage.path / "saved").is_file()):
        _wait(stage.path)
    (stage.path / "file").write_text(f"{name} of {run.config.seed}")
    stage.finish(made_from(run, 0), ["file"], Contents())
    return stage


def _wait(folder: Path) -> None:
    with stop_requests() as asked:
        (folder / "ready").write_text(str(os.getpid()))
        while not asked():
            time.sleep(0.02)
    (folder / "saved").write_text("asked")
    raise Interrupted("stopped and saved")


def one(run: Run) -> Stage:
    return play(run, "one")


def two(run: Run) -> Stage:
    return play(run, "two")


def last(run: Run) -> Stage:
    return play(run, "last")


def here(run: Run) -> Stage:
    return play(run, "here")


def ranked(run: Run) -> Stage:
    """Several ranks leave word that they were there; the first one does what the recipe says."""
    place = run.path / "ranks" / os.environ.get("RANK", "none")
    place.mkdir(parents=True, exist_ok=True)
    (place / "size").write_text(os.environ.get("WORLD_SIZE", ""))
    return play(run, "ranked") if place.name in ("0", "none") else _stage(run, "ranked")


PLAY = (
    Kind("one", made_from, "tests.launch.makers:one", alone=True),
    Kind("two", made_from, "tests.launch.makers:two", alone=True),
    Kind(
        "last",
        made_from,
        "tests.launch.makers:last",
        alone=True,
        reads=lambda config, index: ["one", "two"],
    ),
    Kind(
        "here",
        made_from,
        "tests.launch.makers:here",
        reads=lambda config, index: ["last"],
        again=True,
    ),
    Kind(
        "ranked",
        made_from,
        "tests.launch.makers:ranked",
        training=lambda run, index: run.config.expert,
        wanted=lambda config: any(text.startswith("ranked=") for text in config.sample.prompts),
    ),
)
"""Two jobs, one that waits for both, something that is made by the driver; a training if one is asked for."""
