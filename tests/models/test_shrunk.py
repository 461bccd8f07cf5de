import pytest
import torch
from torch import nn

from atoll.errors import CorruptError
from atoll.flow import gaussian
from atoll.models import checkpoint, shrunk
from atoll.models.shrunk import Shrunk


class Wrong(nn.Module):
    """An expert that always says the same."""

    def forward(self, x_t, t, condition=None):
        return torch.full_like(x_t, 5.0)


def expert(times=(0.5, 0.9, 1.0), shares=(1.0, 0.5, 0.0)):
    samples = torch.randn(50, 1, 4, generator=torch.Generator().manual_seed(0))
    return Shrunk(Wrong(), gaussian.fitted(samples, 2), torch.tensor(times), torch.tensor(shares))


def test_below_what_was_measured_nothing_changes_and_at_the_noise_the_moments_alone_count():
    model, x_t = expert(), torch.randn(3, 1, 4)
    known = gaussian.Gaussian(model.mean, model.basis, model.variances, model.rest)
    t = torch.tensor([0.3, 0.9, 1.0])
    base = gaussian.velocity(known, x_t, t)
    answer = model(x_t, t)
    torch.testing.assert_close(answer[0], torch.full((1, 4), 5.0))
    torch.testing.assert_close(answer[1], (base[1] + 5) / 2)
    torch.testing.assert_close(answer[2], base[2])


def test_half_precision_is_handed_over_as_it_came():
    assert expert()(torch.randn(2, 1, 4).bfloat16(), torch.tensor([0.4, 0.95])).dtype == torch.bfloat16


def test_what_was_written_is_read(tmp_path):
    model, file = expert(), tmp_path / shrunk.FILE
    checkpoint.write_tensors(file, model.tensors())
    again, x_t, t = shrunk.read(file, Wrong(), torch.device("cpu")), torch.randn(2, 1, 4), torch.rand(2)
    for name, value in model.tensors().items():
        assert torch.equal(again.tensors()[name], value)
    torch.testing.assert_close(again(x_t, t), model(x_t, t))  # not to the bit: memory lies otherwise


@pytest.mark.parametrize("damage", ["missing", "short", "not a number", "another rank"])
def test_what_is_damaged_is_refused(tmp_path, damage):
    tensors, file = expert().tensors(), tmp_path / shrunk.FILE
    if damage == "missing":
        del tensors["rest"]
    elif damage == "short":
        tensors["shares"] = tensors["shares"][:1].clone()
    elif damage == "not a number":
        tensors["mean"] = tensors["mean"] * torch.nan
    else:
        tensors["basis"] = tensors["basis"][:1].clone()
    checkpoint.write_tensors(file, tensors)
    with pytest.raises(CorruptError, match="delete its folder and train it again"):
        shrunk.read(file, Wrong(), torch.device("cpu"))
