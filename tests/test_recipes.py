import functools
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from atoll import config
from atoll.errors import ConfigError

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
WRITTEN = [*sorted(RECIPES[0].parent.rglob("*.toml")), *sorted(RECIPES[0].parents[1].glob("examples/*.toml"))]
"""Studies and examples as well."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path):
    assert config.load(path).name == path.stem


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_short_and_every_choice_has_a_reason(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 46
    assert lines[1].startswith("# ")


def schema_of(path: Path) -> dict[str, Any]:
    """What the first line of a recipe names, as editors find it."""
    word, name = path.read_text(encoding="utf-8").splitlines()[0].split()
    assert word == "#:schema"
    return json.loads((path.parent / name).read_text(encoding="utf-8"))


@functools.cache
def validator(schema: str) -> Any:
    """Who checks by a schema, which is one itself: that is looked at once."""
    made = jsonschema.validators.validator_for(json.loads(schema))
    made.check_schema(json.loads(schema))
    return made(json.loads(schema))


def validate(tree: dict[str, Any], path: Path) -> None:
    validator(json.dumps(schema_of(path))).validate(tree)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_every_recipe_is_as_its_schema_says(path):
    validate(tomllib.loads(path.read_text(encoding="utf-8")), path)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("expert", "stepps", 3),
        ("expert", "steps", "many"),
        ("expert", "steps", -1),
        ("expert", "optimiser", "adam"),
        ("data", "holdout", 1.5),
        ("partition", "clusters", 0),
        ("sampel", "num", 3),
    ],
)
def test_a_schema_finds_what_the_program_would_refuse(section, key, value):
    tree = {"name": "mine", section: {key: value}}
    with pytest.raises(jsonschema.ValidationError):
        validate(tree, RECIPES[0])
    with pytest.raises(ConfigError):
        config.validate(tree, "a test")


def test_a_schema_says_what_keys_mean():
    steps = schema_of(RECIPES[0])["$defs"]["ExpertConfig"]["properties"]["steps"]
    assert steps["description"] == "Optimiser steps; 0 takes `init` as it is."
    assert steps["default"] == 100_000


def test_the_monolith_spends_what_the_experts_spend():
    """Samples seen in training: eight experts and their start against one model."""
    experts, monolith = (
        config.load(path.with_stem(name))
        for path, name in ((RECIPES[0], "fashion"), (RECIPES[0], "fashion-monolith"))
    )
    assert experts.start is not None
    spent = experts.partition.clusters * experts.expert.steps * experts.expert.batch
    spent += experts.start.steps * experts.start.batch
    assert monolith.partition.clusters == 1
    assert monolith.expert.steps * monolith.expert.batch == pytest.approx(spent, rel=0.01)
    for key in ("width", "depth", "heads", "patch"):
        assert getattr(monolith.expert, key) == getattr(experts.expert, key)
    assert monolith.data == experts.data
