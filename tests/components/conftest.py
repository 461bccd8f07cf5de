"""A finished run, data of somebody else, and a component of it, made once for all tests."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from atoll import config
from atoll.components import making
from atoll.runs import Run, Stage
from atoll.runs.components import ComponentContents
from tests.beforehand import TINY

ROWS = 96


def own_pictures(seed: int = 0, count: int = ROWS) -> np.ndarray:
    """Pictures that no embedded set has: bright squares somewhere in the dark."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
    for picture, (row, column) in zip(pictures, random.integers(2, 16, (count, 2)), strict=True):
        picture[row : row + 9, column : column + 9] = 230
    return pictures


@pytest.fixture(scope="session")
def made_once(_tiny_finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a component and of the private run behind it."""
    folder = tmp_path_factory.mktemp("owner")
    np.savez(folder / "mine.npz", images=own_pictures())
    (folder / "tiny.toml").write_text(TINY)
    overrides = ["component.owner='alice'", "component.licence='cc-by'", "component.tags=['squares']"]
    overrides += ["component.samples=16", "name='mine'"]
    base = Run.open(_tiny_finished)
    resolved = config.load(folder / "tiny.toml", overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_RUNS", str(folder / "runs"))
        run = Run.create(making.private_config(resolved, base, str(folder / "mine.npz")))
    making.make(run, base, folder / "squares")
    return folder


@pytest.fixture
def component(made_once: Path, tmp_path: Path) -> Stage[ComponentContents]:
    """A component of one's own, to be spoilt."""
    shutil.copytree(made_once / "squares", tmp_path / "squares")
    return Stage(tmp_path / "squares", ComponentContents)
