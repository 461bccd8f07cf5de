"""[expert] `adapter`: what it may say, and what it makes of a run."""

import pytest

from atoll import config
from atoll.config import AdapterConfig, ExpertConfig, RunConfig, settings_digest
from atoll.errors import ConfigError


def run(**sections: object) -> RunConfig:
    return config.validate({"name": "a", "partition": {"clusters": 3}, **sections}, "a test")


START = {"start": {"steps": 5}}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"expert": {"adapter": {"rank": 0}}}, "rank = 0 and tokens = 0 is nothing"),
        ({"expert": {"adapter": {"rank": -1}}}, "rank"),
        ({"expert": {"adapter": {"targets": "everything"}}}, "targets"),
        ({"expert": {"adapter": {"ranks": 3}}}, "ranks"),
        ({"expert": {"adapter": {}}}, r"needs a \[start\]"),
        ({"expert": {"adapter": {"base": "there"}}, **START}, "leave out one of them"),
        ({"expert": {"adapter": {"base": "there"}, "init": "here"}}, "leave out expert.init"),
        ({"expert": {"adapter": {"base": "there"}, "convert": "published"}}, "use 'exact'"),
        ({"expert": {"override": [{"clusters": [1], "adapter": {}}]}}, r"needs a \[start\]"),
    ],
)
def test_mistakes_are_said(sections, words):
    with pytest.raises(ConfigError, match=words):
        run(**sections)


def test_full_experts_and_adapters_in_one_recipe():
    mixed = run(expert={"override": [{"clusters": [1], "adapter": {"rank": 4}}]}, **START)
    assert [mixed.expert_for(k).adapter for k in range(3)] == [None, AdapterConfig(rank=4), None]
    assert mixed.inits() == []


def test_a_start_is_a_network_whatever_experts_are():
    assert run(expert={"adapter": {}}, **START).start_settings().adapter is None


def test_bases_from_elsewhere_are_what_a_run_takes_in():
    several = [{"clusters": [k], "adapter": {"base": base}} for k, base in ((0, "a"), (1, "b"), (2, "a"))]
    assert run(expert={"override": several}).inits() == ["a", "b"]


def test_the_digest_of_an_expert_without_adapter_is_what_it_was():
    """Runs that were finished before there were adapters stay current; a base is digested by its files."""
    assert settings_digest(ExpertConfig()) == settings_digest(ExpertConfig(adapter=None))
    one, other = (ExpertConfig(adapter=AdapterConfig(base=base)) for base in ("here", "there"))
    assert settings_digest(one) == settings_digest(other) != settings_digest(ExpertConfig())
    assert settings_digest(one) != settings_digest(ExpertConfig(adapter=AdapterConfig(base="here", rank=3)))


def test_a_base_beside_the_recipe_is_named_from_anywhere(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "start").mkdir()
    recipe = tmp_path / "mine.toml"
    recipe.write_text('name = "mine"\n[start]\nsteps = 3\n[expert]\nadapter = { rank = 2 }\n')
    adapter = config.load(recipe).expert.adapter
    assert adapter is not None
    assert adapter.base == "start"
    recipe.write_text('name = "mine"\n[expert]\nadapter = { rank = 2, base = "base" }\n')
    adapter = config.load(recipe).expert.adapter
    assert adapter is not None
    assert adapter.base == str(tmp_path / "base")
