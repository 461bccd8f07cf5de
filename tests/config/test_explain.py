import re

import pytest

from atoll import config
from atoll.config.patterns import NAMED
from atoll.errors import ConfigError


@pytest.mark.parametrize("section", ["expert", "router"])
def test_a_section_is_not_dumped_for_one_key(section):
    tree = {"name": "a", section: {"width": 100, "heads": 3, "lr": 0.123}}
    with pytest.raises(ConfigError) as caught:
        config.validate(tree, "a.toml")
    said = str(caught.value)
    assert said.startswith(f"a.toml: [{section}] width 100 is not a multiple of heads 3")
    assert "0.123" not in said
    assert "{" not in said


def test_a_whole_section_in_place_of_a_value_is_not_dumped():
    with pytest.raises(ConfigError) as caught:
        config.validate({"name": "a", "expert": {"steps": {"a": 1, "b": "secret"}}}, "a.toml")
    assert "secret" not in str(caught.value)
    assert "expert.steps" in str(caught.value)


def test_a_list_in_place_of_a_section_is_not_dumped():
    with pytest.raises(ConfigError) as caught:
        config.validate({"name": "a", "expert": list(range(100))}, "a.toml")
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("key", "wrong", "near"),
    [
        ("sample.strategy", "ful", "full"),
        ("sample.strategy", "top1", "top-1"),
        ("sample.strategy", "Ancestral", "ancestral"),
        ("sample.strategy", "nucleus", "nucleus-0.9"),
        ("sample.solver", "eular", "euler"),
        ("sample.solver", "dpm+", "dpm++"),
        ("partition.method", "feature", "features"),
        ("condition.kind", "clas", "class"),
    ],
)
def test_names_that_are_nearly_right(key, wrong, near):
    with pytest.raises(ConfigError, match=re.escape(f"did you mean '{near}'? use ")):
        config.validate(config.assignments(["name=a", f"{key}='{wrong}'"]), "a.toml")


def test_what_is_like_nothing_is_told_all_there_is():
    with pytest.raises(ConfigError, match="'sample.solver' = 'xyz': use 'euler', 'heun' or 'dpm\\+\\+'"):
        config.validate(config.assignments(["name=a", "sample.solver=xyz"]), "a.toml")


def test_names_that_are_offered_are_names():
    for pattern, names in NAMED.items():
        assert all(re.match(pattern, name) for name in names)
