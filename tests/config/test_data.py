"""[data], [encode], [partition], [condition]: what goes together."""

import pytest
from pydantic import ValidationError

from atoll.config import (
    OWN_FEATURES,
    ConditionConfig,
    DataConfig,
    EncodeConfig,
    PartitionConfig,
    settings_digest,
    unknown_features,
)


@pytest.mark.parametrize(
    "tree", [{"method": "file"}, {"file": "a.csv"}, {"method": "random", "file": "a.csv"}]
)
def test_a_file_and_its_method_go_together(tree):
    with pytest.raises(ValidationError, match="give both or neither"):
        PartitionConfig.model_validate(tree)
    assert PartitionConfig(method="file", file="a.csv").file == "a.csv"


def test_a_partition_that_is_taken_over_brings_its_method():
    assert PartitionConfig(like="runs/a").method == "features"
    with pytest.raises(ValidationError, match="brings its own method"):
        PartitionConfig(like="runs/a", method="random")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (DataConfig, "max_skipped", 1.5),
        (DataConfig, "channels", 4),
        (DataConfig, "size", 0),
        (DataConfig, "range", [0.0]),
        (DataConfig, "duplicates", "count"),
        (EncodeConfig, "text_tokens", 0),
        (PartitionConfig, "clusters", 0),
        (ConditionConfig, "dropout", -0.1),
    ],
)
def test_values_that_mean_nothing_are_refused(section, key, value):
    with pytest.raises(ValidationError, match=key):
        section.model_validate({key: value})


def test_a_list_of_a_recipe_is_a_range():
    assert DataConfig.model_validate({"range": [-1.0, 1.0]}).range == (-1.0, 1.0)


def test_where_data_lie_and_how_they_are_made_is_not_what_they_are():
    plain = settings_digest(DataConfig())
    assert settings_digest(DataConfig(source="elsewhere", max_skipped=0.5)) == plain
    assert settings_digest(DataConfig(size=32)) != plain
    encode = settings_digest(EncodeConfig())
    assert settings_digest(EncodeConfig(batch=1, device="cpu")) == encode
    assert settings_digest(EncodeConfig(precision="float16")) != encode


def test_features_may_be_of_a_folder_that_is_elsewhere():
    """What was made or published on another machine is read here as well."""
    assert EncodeConfig(features="elsewhere").features == "elsewhere"


@pytest.mark.parametrize(("name", "near"), [("pixles", "pixels"), ("strat", "start"), ("Auto", "auto")])
def test_features_that_nobody_has_are_known(name, near):
    """A model of the Hub has an owner; a word alone was asked of it again and again."""
    said = unknown_features(name)
    assert said is not None and said.startswith(f"no features '{name}'; did you mean '{near}'")


def test_features_may_be_a_model_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network").mkdir()
    for name in ("facebook/dinov2-base", str(tmp_path / "later"), "network", *OWN_FEATURES):
        assert unknown_features(name) is None
