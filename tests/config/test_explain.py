import pytest

from atoll import config
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
