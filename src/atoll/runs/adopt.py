"""An expert from elsewhere becomes a stage of the run, so that it travels to machines like all others."""

import os
import shutil
from pathlib import Path

from atoll.runs import inputs
from atoll.runs.files import replacing
from atoll.runs.foreign import foreign
from atoll.runs.run import Run
from atoll.runs.stage import Stage


def adopt(run: Run, index: int) -> Stage:
    """Take the files of an expert that others begin with into the run: as links, where that is possible."""
    stage, made_from = run.stage("init", f"{index:02d}"), inputs.init_from(run, index)
    if stage.begin(made_from):
        origin = foreign(run.config.inits()[index])
        for name in origin.record.files:
            _take(origin.path / name, stage.path / name)
        stage.finish(made_from, list(origin.record.files), origin.contents)
    return stage


def _take(source: Path, target: Path) -> None:
    with replacing(target) as beside:
        try:
            os.link(source.resolve(), beside)
        except OSError:  # another disk
            shutil.copyfile(source, beside)
