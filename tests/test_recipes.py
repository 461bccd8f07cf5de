from pathlib import Path

import pytest

from atoll import config

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path):
    assert config.load(path).name == path.stem


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_short_and_every_choice_has_a_reason(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 45
    assert lines[0].startswith("# ")


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
