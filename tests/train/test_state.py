import pytest
import torch
from torch import nn

from atoll.errors import CorruptError, TrainingError
from atoll.train import state as states


def fresh(seed: int) -> states.TrainingState:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    state = states.TrainingState(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True))
    for _ in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        state.optimiser.step()
        state.step += 1
    return state


def test_a_state_comes_back_whole(tmp_path):
    saved, other = fresh(0), fresh(1)
    states.save(saved, tmp_path)
    states.resume(other, tmp_path)
    assert other.step == 2
    left, right = saved.tensors(), other.tensors()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_no_state_is_a_fresh_start(tmp_path):
    state = fresh(0)
    states.resume(state, tmp_path)
    assert state.step == 2


def test_only_the_newest_is_kept(tmp_path):
    state = fresh(0)
    states.save(state, tmp_path)
    state.step = 9
    states.save(state, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-00000009.safetensors"]


@pytest.mark.parametrize("moment", ["write_tensors", "write_json"])
def test_an_interrupted_write_leaves_the_old_state_whole(tmp_path, monkeypatch, moment):
    state = fresh(0)
    states.save(state, tmp_path)
    before = state.tensors()["model/weight"].clone()
    state.parameters[0].data += 1
    state.step = 9

    def full(path, *_):
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        states, moment, full if moment == "write_tensors" else lambda *_: full(tmp_path / "x")
    )
    with pytest.raises(TrainingError, match="No space left on device.*last good state is kept"):
        states.save(state, tmp_path)
    monkeypatch.undo()
    again = fresh(1)
    states.resume(again, tmp_path)
    assert again.step == 2
    assert torch.equal(again.tensors()["model/weight"], before)


def test_one_flipped_byte_is_found(tmp_path):
    states.save(fresh(0), tmp_path)
    path = tmp_path / "step-00000002.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged.*--start-over"):
        states.resume(fresh(1), tmp_path)
