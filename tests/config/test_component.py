import pytest

from atoll import config
from atoll.errors import ConfigError


def test_a_recipe_need_not_say_whose_it_is():
    plain = config.validate({"name": "x"}, "a test")
    assert (plain.component.owner, plain.component.licence, plain.component.access) == (None, "unknown", ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("owner", ""),
        ("owner", "a\nb"),
        ("licence", "{x}"),
        ("tags", ["../x"]),
        ("prototypes", 0),
        ("prototypes", 1000),
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("samples", -1),
    ],
)
def test_what_a_card_cannot_say_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"component.{key}"):
        config.validate({"name": "x", "component": {key: value}}, "a test")
