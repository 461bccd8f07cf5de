import numpy as np
import pytest
import torch

from atoll.errors import ConfigError
from atoll.models.conditions import TextCondition
from atoll.sampling.vocabulary import Vocabulary

NAMES = ("boot", "shirt", "bag")


def counting() -> tuple[Vocabulary, list[list[str]]]:
    """An encoder that tells the length of each prompt, and remembers what it was asked."""
    asked: list[list[str]] = []

    def encode(prompts):
        asked.append(list(prompts))
        lengths = torch.tensor([float(len(prompt)) for prompt in prompts])
        states = lengths[:, None, None].expand(-1, 2, 4)
        return TextCondition(states, torch.ones(len(prompts), 2, dtype=torch.bool), states[:, 0])

    return Vocabulary(encode=encode), asked


def test_classes_by_number_and_by_name():
    vocabulary = Vocabulary(NAMES)
    assert vocabulary.labels(["bag", "0", 1], "class") == [2, 0, 1]
    assert vocabulary.labels("shirt", "class") == [1]
    assert vocabulary.labels(None, "class") is None
    assert [vocabulary.name(k) for k in (2, 5)] == ["bag", "5"]


def test_a_name_that_looks_like_a_number_is_a_name():
    assert Vocabulary(("7", "3")).labels("3", "class") == [1]


def test_numbers_mean_the_same_however_they_are_given():
    """As in a source with labels 1 to 10: the class named 3 is the third, typed or given."""
    names = tuple(str(number) for number in range(1, 11))
    for asked in ("3", 3):
        assert Vocabulary(names).labels(asked, "class") == [2]
        assert Vocabulary().labels(asked, "class") == [3]
    for asked in ("0", 0, 11, -1, "-1"):
        with pytest.raises(ConfigError, match=f"there is no class '{asked}'"):
            Vocabulary(names).labels(asked, "class")
    for asked in ("3", 3, -1):
        with pytest.raises(ConfigError, match="there are boot, shirt, bag"):
            Vocabulary(NAMES).labels(asked, "class")


@pytest.mark.parametrize(
    "asked", [[3, 1], (3, 1), torch.tensor([3, 1]), np.array([3, 1]), np.array(["3", "1"]), range(3, 0, -2)]
)
def test_several_classes_as_programs_hold_them(asked):
    assert Vocabulary().labels(asked, "class") == [3, 1]
    assert Vocabulary(("1", "2", "3")).labels(asked, "class") == [2, 0]


@pytest.mark.parametrize("asked", [3, np.int64(3), torch.tensor(3), torch.tensor([3]), np.array(3)])
def test_one_class_as_programs_hold_it(asked):
    assert Vocabulary().labels(asked, "class") == [3]


@pytest.mark.parametrize("asked", [1.5, [1.5], torch.tensor([0.5]), [None], {"a": 1}.get])
def test_what_is_no_class_is_told(asked):
    with pytest.raises(ConfigError, match="a class is a name or a whole number, not"):
        Vocabulary(NAMES).labels(asked, "class")


def test_an_unknown_class_gets_the_nearest_name_or_all():
    with pytest.raises(ConfigError, match="did you mean 'shirt'"):
        Vocabulary(NAMES).labels("shirts", "class")
    with pytest.raises(ConfigError, match="there are boot, shirt, bag"):
        Vocabulary(NAMES).labels("xyz", "class")


def test_a_prompt_costs_one_encoding_however_often_it_is_asked_for():
    vocabulary, asked = counting()
    texts = vocabulary.texts(["red", "green", "red"], "text")
    assert texts.pooled[:, 0].tolist() == [3, 5, 3]
    assert asked == [["red", "green"]]
    assert vocabulary.texts("green", "text").pooled[:, 0].tolist() == [5]
    vocabulary.texts(["violet", "red"], "text")
    assert asked == [["red", "green"], ["violet"]]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("none", "trained without captions"), ("class", "give a label, one of boot, shirt, bag")],
)
def test_prompts_for_a_run_that_takes_none(kind, said):
    with pytest.raises(ConfigError, match=said):
        Vocabulary(NAMES).texts("red apple", kind)


@pytest.mark.parametrize(("kind", "said"), [("none", "leave the class out"), ("text", "by a prompt")])
def test_classes_for_a_run_that_takes_none(kind, said):
    with pytest.raises(ConfigError, match=said):
        Vocabulary().labels(1, kind)


def test_no_prompt_among_the_prompts():
    vocabulary, _ = counting()
    with pytest.raises(ConfigError, match="at least one"):
        vocabulary.texts([], "text")


def test_prompts_of_many_users_do_not_pile_up(monkeypatch):
    from atoll.sampling import vocabulary as module

    monkeypatch.setattr(module, "REMEMBERED", 3)
    vocabulary, asked = counting()
    assert vocabulary.texts(list("abcde"), "text").pooled.shape == (5, 4)
    assert list(vocabulary.known) == list("cde")
    vocabulary.texts("e", "text")
    assert len(asked) == 1
