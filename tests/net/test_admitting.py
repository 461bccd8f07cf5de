"""States at the door of a coordinator: chains and headers, of segments and of nothing else."""

import hashlib

import pytest
import torch
from safetensors.torch import save_file

from atoll.net import admitting
from atoll.net.protocol import File, Numerics, Result, Unit
from atoll.net.verification.admission import Findings
from atoll.net.verification.asking import state_name
from tests.net.crowds import RUN, Machine, coordinator


class Folder:
    """Files by their digests, as the store has them."""

    def __init__(self, path):
        self.folder, self.store = path, self
        self.address = str(path)

    def keep(self, step, tensors) -> File:
        path = self.folder / "new"
        save_file(tensors, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(self.folder / digest)
        size = (self.folder / digest).stat().st_size
        return File(path=f"experts/00/state/{state_name(step)}", sha256=digest, size=size)

    def path(self, sha256):
        return self.folder / sha256


def segment(here, after, before=None, chain=None, role="train"):
    old = here.keep(4, before or {"model/w": torch.zeros(3)})
    new = here.keep(8, after)
    unit = Unit(run=RUN, name="u", stage="expert 0", role=role, first=4, last=8, every=2, inputs=(old,))
    links = (old.sha256, "5" * 64, new.sha256) if chain is None else chain
    result = Result(unit=unit.digest, outputs=(new,), chain=links, numerics=Numerics())
    return admitting.findings(here, unit, result)


def test_an_honest_segment_is_let_in(tmp_path):
    assert segment(Folder(tmp_path), {"model/w": torch.ones(3)}) == Findings()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"after": {"model/w": torch.ones(4)}}, "shapes"),
        ({"after": {"model/w": torch.ones(3), "more": torch.ones(1)}}, "shapes"),
        ({"chain": ("1" * 64, "2" * 64, "3" * 64)}, "chain"),
        ({"chain": ()}, "chain"),
        ({"after": {"model/w": torch.zeros(3)}}, "chain"),  # the state that was handed out
    ],
)
def test_what_anybody_sees_to_be_false_is_refused(tmp_path, changes, code):
    faults = segment(Folder(tmp_path), **{"after": {"model/w": torch.ones(3)}, **changes}).faults
    assert set(faults) == {code}


def test_other_work_and_stores_elsewhere(tmp_path):
    here = Folder(tmp_path)
    assert segment(here, {"model/w": torch.ones(4)}, role="whole", chain=()) == Findings()
    here.address = "s3://bucket/run"  # hashes are held to the chain, files are not fetched for their headers
    assert segment(here, {"model/w": torch.ones(4)}) == Findings()
    assert not segment(here, {"model/w": torch.ones(3)}, chain=("1" * 64,)).admitted


def test_a_coordinator_refuses_with_the_reason(database, tmp_path, monkeypatch):
    monkeypatch.setattr(
        admitting, "findings", lambda *given, **more: Findings({"finite": "it holds numbers that are none"})
    )
    here = coordinator(database, tmp_path)
    machine = Machine.of(here)
    receipt = machine.work()
    assert receipt.state == "rejected"
    assert receipt.reason == "finite: it holds numbers that are none"
