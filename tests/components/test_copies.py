import shutil

import pytest
import torch

from atoll.components import adding, calibrating, copies
from atoll.errors import ConfigError
from atoll.models import checkpoint
from tests.components.test_checking import spoil_weights


def shuffled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same network with the hidden units of every MLP in another order."""
    moved = dict(tensors)
    for stem in [name.removesuffix("up.weight") for name in tensors if name.endswith(".up.weight")]:
        order = torch.randperm(len(tensors[f"{stem}up.weight"]), generator=torch.Generator().manual_seed(1))
        for name in ("up.weight", "up.bias"):
            moved[stem + name] = tensors[stem + name][order]
        moved[f"{stem}down.weight"] = tensors[f"{stem}down.weight"][:, order]
    return moved


def test_a_copy_with_its_units_in_another_order_is_refused(finished, component):
    own = finished.expert(1).path / checkpoint.WEIGHTS
    shutil.copyfile(own, component.path / checkpoint.WEIGHTS)
    spoil_weights(component, shuffled)
    before, after = (checkpoint.read_tensors(path) for path in (own, component.path / checkpoint.WEIGHTS))
    apart = sum(float((after[name] - before[name]).square().sum()) for name in before)
    assert apart > 0.1 * sum(float(tensor.square().sum()) for tensor in before.values()), (
        "weights are far apart"
    )
    with pytest.raises(ConfigError, match="says what part 1 says"):
        adding.add(finished, component.path)


def test_parts_of_different_data_are_no_copies(finished, component):
    calibrating.own_rows(finished)
    assert copies.copied(component, finished) is None


def test_points_are_where_a_part_is_at_home_and_the_same_for_all(finished):
    calibrating.own_rows(finished)
    one, again, other = (copies.points(finished, k) for k in (0, 0, 1))
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    assert len(set(one[1].tolist())) == copies.POINTS
