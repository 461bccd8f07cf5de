"""What a job measures, to TensorBoard or Weights & Biases as well; none of them can stop it."""

import contextlib
import importlib
import logging
import netrc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atoll.runs import Run, Stage, digest

logger = logging.getLogger(__name__)

FOLDER = "tracking"
"""Below the run's folder, on the machine where a job runs."""
PATIENCE = 60.0
"""Seconds that a tracker has to send what it still has, after the last step."""


@dataclass(frozen=True)
class Tracked:
    """Whose numbers they are."""

    run: Run
    job: str
    stage: Stage

    def folder(self, tracker: str) -> Path:
        """Where a tracker may write."""
        return self.run.path / FOLDER / tracker


class Tracker(Protocol):
    """Somebody who is told what was measured."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics."""
        ...

    def close(self) -> None:
        """There is no more."""
        ...


class TensorBoard:
    """Event files, a folder for every job: `tensorboard --logdir runs/<name>/tracking/tensorboard`."""

    def __init__(self, about: Tracked, step: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        folder = about.folder("tensorboard") / about.job
        # What comes after the step from which training goes on will be measured again.
        self._writer = module.SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar each."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases for every job, in a group of the run's name; offline without a key."""

    def __init__(self, about: Tracked, step: int) -> None:
        wandb = importlib.import_module("wandb")
        folder = about.folder("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        identity = digest([about.run.config.name, about.job, about.stage.started])
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "atoll"),
            group=about.run.config.name,
            name=about.job,
            id=identity[:16],
            resume="allow",
            dir=str(folder),
            config=about.run.config.model_dump(mode="json"),
            mode=wandb_mode(),
            settings=wandb.Settings(silent=True, console="off", init_timeout=PATIENCE),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """All of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is still here."""
        self._run.finish()


def wandb_mode() -> Any:
    """As WANDB_MODE says; else offline unless there is a key, since nobody sits there to type one in."""
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").removeprefix("https://").split("/")[0]
    known = "WANDB_API_KEY" in os.environ
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        known = known or netrc.netrc().authenticators(host) is not None
    return os.environ.get("WANDB_MODE", "online" if known else "offline")


TRACKERS: dict[str, Callable[[Tracked, int], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


class Trackers:
    """All trackers of a job, of which none can stop it."""

    def __init__(self, about: Tracked, names: tuple[str, ...], step: int) -> None:
        self.about, self._open = about, dict[str, Tracker]()
        for name in names:
            with self._forgiving(name):
                self._open[name] = TRACKERS[name](about, step)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Tell them one line of metrics."""
        for name, tracker in list(self._open.items()):
            with self._forgiving(name):
                tracker.log(step, values)

    def close(self) -> None:
        """Let them finish, each for a while."""
        for name, tracker in list(self._open.items()):
            with self._forgiving(name):
                _in_time(tracker.close)

    @contextlib.contextmanager
    def _forgiving(self, name: str) -> Iterator[None]:
        """Whatever goes wrong is one line in the events, and nobody asks that tracker again."""
        try:
            yield
        except Exception as error:  # a stranger's program, on a stranger's network
            self._open.pop(name, None)
            missing = isinstance(error, ModuleNotFoundError)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"it is not installed: pip install 'atoll[{name}]'" if missing else lines[0]
            self.about.run.event("tracking_failed", job=self.about.job, tracker=name, reason=reason)
            logger.warning(
                "%s: %s does not work (%s); training goes on without it", self.about.job, name, reason
            )


def _in_time(close: Callable[[], None], patience: float = PATIENCE) -> None:
    """Call it, but wait no longer than this; what it raises is raised here."""
    raised: list[Exception] = []

    def attempt() -> None:
        try:
            close()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, name="atoll-tracking", daemon=True)
    thread.start()
    thread.join(patience)
    if thread.is_alive():
        raise TimeoutError(f"it was not done after {patience:g} s")
    if raised:
        raise raised[0]
