from typing import Any

import pytest
import torch

from atoll.models import conditions
from atoll.models.conditions import TextCondition

HIDDEN = torch.tensor([True, False, True, False])


def text(batch: int = 4, length: int = 3, width: int = 5) -> TextCondition:
    """Sample i has i + 1 tokens, as far as there is room."""
    mask = torch.arange(length)[None] <= torch.arange(batch)[:, None]
    return TextCondition(torch.randn(batch, length, width), mask, torch.randn(batch, width))


def test_hidden_classes_become_the_null_class():
    label = torch.tensor([0, 1, 2, 3])
    assert conditions.hide(label, HIDDEN, classes=4).tolist() == [4, 1, 4, 3]
    assert conditions.null(label, classes=4).tolist() == [4, 4, 4, 4]
    assert conditions.hide(None, HIDDEN, classes=0) is None


def test_hidden_texts_have_no_token_and_no_pooled_state():
    told = text()
    hidden = conditions.hide(told, HIDDEN, classes=0)
    assert hidden.mask.sum(1).tolist() == [0, 2, 0, 3]
    assert (hidden.pooled[HIDDEN] == 0).all()
    assert torch.equal(hidden.pooled[~HIDDEN], told.pooled[~HIDDEN])
    assert not conditions.null(told, 0).mask.any()


@pytest.mark.parametrize("condition", [torch.arange(4), text(), None])
def test_one_value_through_batching_and_guidance(condition):
    """Taking rows of two batches put together gives back each."""
    both = conditions.concatenate([condition, conditions.null(condition, 9)])
    if condition is None:
        assert both is None
        assert conditions.take(None, HIDDEN) is None
        return
    assert len(both) == 8
    first, rest = conditions.take(both, slice(0, 4)), conditions.take(both, torch.tensor([4, 6]))
    null = conditions.take(conditions.null(condition, 9), torch.tensor([0, 2]))
    for left, right in ((first, condition), (rest, null)):
        if isinstance(left, TextCondition):
            for name in ("tokens", "mask", "pooled"):
                assert torch.equal(getattr(left, name), getattr(right, name))
        else:
            assert torch.equal(left, right)


def test_texts_of_unequal_length_are_padded():
    both = conditions.concatenate([text(2, 3), text(4, 1)])
    assert both.tokens.shape == (6, 3, 5)
    assert both.mask.sum(1).tolist() == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["none", "class", "text"])
def test_nothing_is_what_null_makes_of_something(kind):
    made: Any = conditions.nothing(kind, 3, classes=7, text=5)
    if kind == "class":
        assert torch.equal(made, conditions.null(torch.arange(3), 7))
    elif kind == "text":
        assert not made.mask.any()
        assert made.pooled.shape == (3, 5)
    else:
        assert made is None


def test_none_adds_nothing():
    assert conditions.build("none", 0, 0, 8)(None) == 0


def test_there_is_a_row_for_the_null_class():
    table = conditions.build("class", 4, 0, 8)
    assert table(torch.tensor([4])).shape == (1, 8)
    assert not torch.equal(table(torch.tensor([4])), table(torch.tensor([3])))


def test_a_silent_text_is_one_learned_state_and_others_stay():
    memory = conditions.TextMemory(5, 8)
    torch.nn.init.normal_(memory.null)
    told = conditions.hide(text(), HIDDEN, 0)
    states, mask = memory(told)
    assert mask[:, 0, 0].sum(1).tolist() == [1, 2, 1, 3]
    torch.testing.assert_close(states[0, 0], memory.project(memory.null))
    torch.testing.assert_close(states[1:2], memory.project(told.tokens[1:2]))
