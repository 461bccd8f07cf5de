"""Shares of a stage on helpers, without a cluster; with one, see test_on_ray."""

import numpy as np

from atoll.config import validate
from atoll.launch.parts_on_ray import Helper
from atoll.runs import Run


def test_a_helper_does_its_shares_where_folders_are_shared(tmp_path):
    np.savez(tmp_path / "source.npz", images=np.zeros((30, 8, 8), np.uint8))
    tree = {"name": "a", "data": {"source": str(tmp_path / "source.npz"), "part": 10}}
    run = Run(tmp_path / "a", validate(tree, "a test"))
    helper = Helper(run.config, str(run.path), "data")
    for share in helper.parts.missing():
        helper.work(share)
    assert len(list(run.data.path.glob("part-*-000.parquet"))) == 3
