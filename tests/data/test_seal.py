"""A job inside a seal reaches its own samples and no others, by whatever way it tries."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.seal import sealed
from atoll.data.store import Reader, open_parquet
from atoll.errors import IsolationError
from atoll.runs import Run, Stage
from tests.data.conftest import MakeRun


@pytest.fixture
def run(make_run: MakeRun, npz: Any) -> Run:
    run = make_run(npz(30), partition={"clusters": 3, "method": "random"})
    prepare(run)
    partition(run)
    return run


NAME = "part-00000.parquet"


def test_other_stages_stay_shut(run: Run) -> None:
    with sealed(run.cluster(0)):
        open_parquet(run.cluster(0), NAME).close()
        for other in (run.cluster(1), run.cluster(2), run.data):
            with pytest.raises(IsolationError, match="belongs to another job; a job may read only its own"):
                open_parquet(other, NAME)
    open_parquet(run.cluster(1), NAME).close()


def test_not_even_by_hand(run: Run) -> None:
    with sealed(run.cluster(0)):
        (run.cluster(0).path / NAME).read_bytes()
        for attempt in (
            lambda: (run.cluster(1).path / NAME).read_bytes(),
            lambda: np.load(run.cluster(1).path / "x.npy"),
            lambda: run.cluster(1).contents,
            lambda: shutil.copy(run.cluster(2).path / NAME, run.cluster(0).path / "copy"),
        ):
            with pytest.raises(IsolationError):
                attempt()
    assert run.cluster(1).contents.cluster == 1


def test_not_by_a_link_nor_by_a_detour(run: Run, tmp_path: Path) -> None:
    link = tmp_path / "innocent"
    link.symlink_to(run.cluster(1).path)
    with sealed(run.cluster(0)):
        for path in (link, run.cluster(0).path / ".." / "cluster-01"):
            with pytest.raises(IsolationError):
                (path / NAME).read_bytes()
            with pytest.raises(IsolationError):
                open_parquet(Stage(path), NAME)


def test_a_seal_is_lifted_even_after_an_error_and_can_name_several(run: Run) -> None:
    with pytest.raises(RuntimeError, match="boom"), sealed(run.cluster(0)):
        raise RuntimeError("boom")
    with sealed(run.cluster(1), run.cluster(2)):
        batches = Reader([run.cluster(1), run.cluster(2)], 5, seed=0).batches()
        next(batches)
        batches.close()


def test_a_reader_cannot_be_opened_for_another_cluster(run: Run) -> None:
    with sealed(run.cluster(0)), pytest.raises(IsolationError):
        Reader([run.cluster(0), run.cluster(1)], 5, seed=0)
