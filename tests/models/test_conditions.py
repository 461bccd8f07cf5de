import torch

from atoll.models import conditions


def test_hidden_classes_become_the_null_class():
    label = torch.tensor([0, 1, 2, 3])
    hidden = torch.tensor([True, False, True, False])
    told = conditions.hide(label, hidden, classes=4)
    assert told is not None
    assert told.tolist() == [4, 1, 4, 3]
    assert conditions.hide(None, hidden, classes=0) is None


def test_none_adds_nothing():
    assert conditions.build("none", 0, 8)(None) == 0


def test_there_is_a_row_for_the_null_class():
    table = conditions.build("class", 4, 8)
    assert table(torch.tensor([4])).shape == (1, 8)
    assert not torch.equal(table(torch.tensor([4])), table(torch.tensor([3])))
