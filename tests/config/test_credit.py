import pytest

from atoll import config
from atoll.errors import ConfigError


def test_a_recipe_need_not_say_anything_of_credit():
    plain = config.RunConfig(name="plain")
    assert (plain.credit.num, plain.credit.epoch, plain.credit.seed) == (2000, 0, None)


@pytest.mark.parametrize(("key", "value"), [("num", 3), ("clip", 0.0), ("epoch", -1), ("seeds", 1)])
def test_what_cannot_be_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"credit.{key}"):
        config.validate({"name": "x", "credit": {key: value}}, "a test")


def test_how_much_is_asked_at_once_is_nobodys_business():
    """It changes no value, and so no digest."""
    small, large = (config.CreditConfig(batch=size) for size in (8, 512))
    assert config.settings_digest(small) == config.settings_digest(large)
