"""A stage that is made in shares is the stage that is made at once."""

import numpy as np

from atoll.config import validate
from atoll.data import encode, partition
from atoll.data.shares import Assignments, Pieces
from atoll.runs import Run


def run_of(tmp_path, name):
    source = tmp_path / "source.npz"
    if not source.is_file():
        values = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
        np.savez(source, images=values)
    tree = {"name": name, "data": {"source": str(source), "part": 20}}
    return Run(tmp_path / name, validate({**tree, "partition": {"clusters": 2, "fine": 4}}, "a test"))


def test_pieces_and_assignments_are_found_done(tmp_path):
    whole, cut = run_of(tmp_path, "whole"), run_of(tmp_path, "cut")
    for stage, make in ((Pieces, encode.prepare), (Assignments, partition.partition)):
        make(whole)
        shares = stage(cut)
        missing = list(shares.missing())
        assert len(missing) == 3
        for share in reversed(missing):
            shares.make(share)
        assert not list(stage(cut).missing())
        make(cut)
    assert cut.data.record.files == whole.data.record.files
    assert cut.partition.record.files == whole.partition.record.files
    assert not Pieces(cut).missing(), "nothing is left of a finished stage"


def test_a_share_needs_its_own_files_alone(tmp_path):
    shares = Assignments(run_of(tmp_path, "a"))
    needed = shares.needed("part-00001-000.parquet")
    assert needed("part-00001-000.parquet")
    assert not needed("part-00002-000.parquet")
    assert not shares.progress("part-00001-000.parquet")("assignment-00000-000.parquet")
    assert not Pieces(shares.run).needed(0)("anything")
