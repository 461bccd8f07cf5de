import shutil
import threading
from typing import Any

import pytest
import torch
from torch import nn

from atoll.config import TrainConfig
from atoll.errors import CorruptError, TrainingError
from atoll.models.checkpoint import write_tensors
from atoll.runs import read_json
from atoll.train import optimiser
from atoll.train import state as states
from atoll.train.ranks import Ranks
from tests.pretend_gpu import pretended_gpu


def fresh(seed: int, device: torch.device | str = "cpu") -> states.TrainingState:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2).to(device)
    state = states.TrainingState(model, optimiser.build(model, TrainConfig()))
    for _ in range(2):
        torch.autograd.backward(model(torch.randn(4, 3).to(device)).square().sum())
        state.optimisers[0].step(0.1)
        state.step += 1
    return state


def keeper(folder, *, background: bool = False, **settings: object) -> states.Keeper:
    return states.Keeper(folder, TrainConfig.model_validate(settings), Ranks(), background=background)


def names(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_a_state_comes_back_whole(tmp_path):
    saved, other = fresh(0), fresh(1)
    keeper(tmp_path).save(saved)
    keeper(tmp_path).resume(other)
    assert other.step == 2
    left, right = dict(saved.tensors()), dict(other.tensors())
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_no_state_is_a_fresh_start(tmp_path):
    state = fresh(0)
    keeper(tmp_path).resume(state)
    assert state.step == 2


def save_at(folder, *steps: int, **settings: Any) -> None:
    state = fresh(0)
    for step in steps:
        state.step = step
        keeper(folder, **settings).save(state)


def test_only_the_newest_is_kept(tmp_path):
    save_at(tmp_path, 2, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-00000009.safetensors"]


def test_retention_by_count_and_by_milestone(tmp_path):
    save_at(tmp_path, 10, 20, 30, 40, 50, 60, 70, keep=2, milestone_every=20)
    assert names(tmp_path) == [f"step-000000{step}.safetensors" for step in (20, 40, 50, 60, 70)]


def test_a_milestone_that_is_the_newest_counts_as_one(tmp_path):
    save_at(tmp_path, 10, 20, keep=1, milestone_every=20)
    assert names(tmp_path) == ["step-00000010.safetensors", "step-00000020.safetensors"]


def test_states_after_the_one_gone_back_to_are_forgotten(tmp_path):
    save_at(tmp_path, 10, 20, keep=3)
    save_at(tmp_path, 15, keep=3)
    assert names(tmp_path) == ["step-00000010.safetensors", "step-00000015.safetensors"]


@pytest.mark.parametrize("moment", ["write_tensors", "write_json", "_require_room"])
@pytest.mark.parametrize("background", [False, True])
def test_an_interrupted_write_leaves_the_old_state_whole(tmp_path, monkeypatch, moment, background):
    state = fresh(0)
    keeper(tmp_path).save(state)
    before = dict(state.tensors())["model/weight"].clone()
    state.parameters[0].data += 1
    state.step = 9

    def full(path, *_):
        if moment != "_require_room":
            path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states, moment, full if moment != "write_json" else lambda *_: full(tmp_path / "x"))
    writer = keeper(tmp_path, background=background)

    def save():
        writer.save(state)
        writer.wait()

    with pytest.raises(TrainingError, match=r"No space left on device.*last good state is kept"):
        save()
    monkeypatch.undo()
    again = fresh(1)
    keeper(tmp_path).resume(again)
    assert again.step == 2
    assert torch.equal(dict(again.tensors())["model/weight"], before)


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    monkeypatch.setattr(states, "write_tensors", lambda *_: pytest.fail("touched the disk"))
    with pytest.raises(TrainingError, match=r"No space left on device: a state takes .* MB are free"):
        keeper(tmp_path).save(fresh(0))
    assert list(tmp_path.iterdir()) == []


def test_steps_go_on_while_the_state_is_written(tmp_path, monkeypatch):
    """What is written is the state of the moment of saving, though training has gone on meanwhile."""
    state, go, write = fresh(0), threading.Event(), write_tensors
    monkeypatch.setattr(states, "write_tensors", lambda *a: (go.wait(600), write(*a)))
    writer = keeper(tmp_path, background=True)
    before = {name: value.clone() for name, value in state.tensors()}
    writer.save(state)
    state.parameters[0].data += 1
    state.ema[0] += 1
    assert not (tmp_path / "latest.json").exists()
    go.set()
    writer.wait()
    again = fresh(1)
    keeper(tmp_path).resume(again)
    assert all(torch.equal(value, before[name]) for name, value in again.tensors())


def test_saves_on_a_gpu_are_not_waited_for_and_use_their_memory_again(tmp_path):
    with pretended_gpu() as gpu:
        state, writer = fresh(0, "cuda"), keeper(tmp_path, background=True)
        gpu.waits.clear()
        writer.save(state)
        places = {name: value.data_ptr() for name, value in writer._pinned.items()}
        state.step += 1
        state.optimisers[0].step(0.1)
        writer.save(state)
        assert not gpu.waits, gpu.told()
        writer.wait()
        assert places == {name: value.data_ptr() for name, value in writer._pinned.items()}
        written = {name: value.cpu() for name, value in state.tensors()}
    assert places.keys() == written.keys()
    again = fresh(1)
    keeper(tmp_path).resume(again)
    assert again.step == 3
    assert all(torch.equal(value, written[name]) for name, value in again.tensors())


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_one_flipped_byte_is_found(tmp_path):
    keeper(tmp_path).save(fresh(0))
    flip(tmp_path / "step-00000002.safetensors")
    with pytest.raises(CorruptError, match=r"damaged.*--start-over"):
        keeper(tmp_path).resume(fresh(1))


def test_a_damaged_state_gives_way_to_the_one_before(tmp_path):
    save_at(tmp_path, 10, 20, keep=2)
    flip(tmp_path / "step-00000020.safetensors")
    state = fresh(1)
    keeper(tmp_path).resume(state)
    assert state.step == 10


def test_decisions_are_remembered(tmp_path):
    assert keeper(tmp_path).decisions() == {}
    keeper(tmp_path).remember({"compile": True})
    assert keeper(tmp_path).decisions() == read_json(tmp_path / "decisions.json") == {"compile": True}


def test_weights_and_their_averages_are_exchanged_for_a_while():
    model = torch.nn.Linear(2, 1)
    state = states.TrainingState(model, [])
    before = model.weight.detach().clone()
    state.ema[0].fill_(3.0)
    with pytest.raises(ZeroDivisionError), state.as_averaged():
        assert model.weight.tolist() == [[3.0, 3.0]]
        raise ZeroDivisionError
    assert torch.equal(model.weight, before)
    assert state.ema[0].tolist() == [[3.0, 3.0]]
