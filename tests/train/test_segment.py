import hashlib
from pathlib import Path

import pytest
import torch

from atoll.errors import Interrupted
from atoll.models.checkpoint import read_tensors
from atoll.runs import file_digest, read_json
from atoll.train import jobs
from atoll.train.segment import Segment, of, only
from tests.thorough import some

PINNED = ["expert.precision='float32'", "expert.compile='off'"]


def train(run, last, every=2, traces=None):
    """Expert 0 to this step; the hashes on the way."""
    chain: dict[int, str] = {}
    traced = ({} if traces is None else traces).__setitem__
    with only(Segment(run.expert(0).path, last, every, chain.__setitem__, traced)):
        if last < run.config.expert.steps:
            with pytest.raises(Interrupted, match=f"stopped at step {last} of 10"):
                jobs.expert(run, 0)
        else:
            jobs.expert(run, 0)
    return chain


def state(run):
    pointer = read_json(run.expert(0).path / "state" / "latest.json")
    return pointer["step"], read_tensors(run.expert(0).path / "state" / pointer["file"])


@pytest.mark.parametrize("cuts", some([[2, 4, 6, 8, 10], [4, 10], [6, 10]], 1))
def test_a_training_is_the_same_however_it_is_cut(prepared, cuts):
    plain, whole, cut = (prepared(*PINNED, name=name) for name in ("plain", "whole", "cut"))
    jobs.expert(plain, 0)
    ways: dict[int, str] = {}
    traces: dict[int, str] = {}
    chain = train(whole, 10, traces=ways)
    assert list(chain) == [0, 2, 4, 6, 8, 10]
    pieces: dict[int, str] = {}
    for last in cuts:
        pieces |= train(cut, last, traces=traces)
    assert pieces == chain
    assert traces == ways and list(ways) == [2, 4, 6, 8, 10] and len(set(ways.values())) == 5
    left, right = state(plain), state(cut)
    assert left[0] == right[0] == 10
    assert [key for key in left[1] if not torch.equal(left[1][key], right[1][key])] == []
    assert plain.expert(0).record.files == cut.expert(0).record.files
    assert len(set(chain.values())) == len(chain)


def test_a_trace_is_the_hash_of_the_losses_of_its_steps():
    told: dict[int, str] = {}
    segment = Segment(Path(), 7, 3, lambda step, sha256: None, told.__setitem__)
    losses = torch.rand(7, 2)
    for step in range(2, 8):  # the state at step 1 is nobody else's: its interval has no trace
        segment.seen(step, losses[step - 1])
    assert told == {
        6: hashlib.sha256(losses[3:6].numpy().tobytes()).hexdigest(),
        7: hashlib.sha256(losses[6:7].numpy().tobytes()).hexdigest(),
    }


def test_the_hash_is_that_of_the_file(prepared):
    run = prepared(*PINNED)
    chain = train(run, 4)
    path = run.expert(0).path / "state" / "step-00000004.safetensors"
    assert chain[4] == file_digest(path)
    assert train(run, 4) == {}, "nothing is left to do"
    assert state(run)[0] == 4


def test_saves_of_the_recipe_are_no_links_of_the_chain(prepared):
    """`save_every` is 3 there: how a machine saves is its own affair."""
    assert list(train(prepared(*PINNED), 5, every=4)) == [0, 4, 5]


def test_what_is_trained_on_the_way_is_not_cut(prepared):
    run = prepared(*PINNED)
    with only(Segment(run.expert(1).path, 2, 2, lambda step, sha256: None)):
        assert of(run.expert(0)) is None
        assert of(run.expert(1)) is not None
        jobs.expert(run, 0)
    assert run.expert(0).done
    assert of(run.expert(1)) is None
