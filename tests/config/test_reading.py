import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll import config
from atoll.config import reading
from atoll.errors import ConfigError


def load(tmp_path: Path, text: str, *overrides: str) -> config.RunConfig:
    path = tmp_path / "a.toml"
    path.write_text(text)
    return config.load(path, overrides)


def test_defaults_need_only_a_name(tmp_path):
    assert load(tmp_path, 'name = "a"') == config.RunConfig(name="a")


def test_the_tree_is_frozen():
    run = config.RunConfig(name="a")
    with pytest.raises(ValidationError, match="frozen"):
        run.expert.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a"\n[expert]\nstesp = 3', "unknown key 'expert.stesp', did you mean 'expert.steps'"),
        ('name = "a"\n[exprt]\nsteps = 3', "unknown key 'exprt', did you mean 'expert'"),
        ('name = "a"\n[expert]\nsteps = "many"', r"'expert.steps' = 'many'"),
        ('name = "a"\n[expert]\nsteps = 0', "'expert.steps' = 0"),
        ('name = "a"\n[expert]\nsteps = 1.5', "'expert.steps' = 1.5"),
        ('name = "a"\n[expert]\nwidth = 100\nheads = 3', "width 100 is not a multiple of heads 3"),
        ('name = "a"\n[expert]\npatch = []', "'expert.patch'"),
        ('name = "../a"', "'name' = '../a': use letters, digits"),
        ("seed = 1", "'name' is missing"),
        ("name = ", "not TOML"),
        ('name = "a"\n[sample]\nstrategy = "best"', "'sample.strategy' = 'best': use full, top-K"),
        ('name = "a"\nexpert = 3', "'expert' = 3: this is a section"),
        ('name = "a"\n[expert]\nfoo = 3', r"unknown key 'expert.foo'; see docs/reference.md"),
        ('name = "a"\n[evaluate]\nstrategies = ["best"]', r"'evaluate.strategies.0' = 'best': use full"),
        ('name = "a"\n[evaluate]\nstrategies = "full"', r"give a list, such as \['full'\]"),
        (
            'name = "a"\n[evaluate]\nfeatures = ["pixls"]',
            "no features 'pixls'; did you mean 'pixels'\\? use classifier, pixels",
        ),
        (
            'name = "a"\nrecipe = "b.toml"\n[budget]\nsamples = [1]',
            "a study, not a recipe; use `atoll study",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml: no such recipe"):
        config.load(tmp_path / "nothing.toml")


def test_a_binary_file_is_not_a_recipe(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"a\.toml"):
        config.load(tmp_path / "a.toml")


def test_overrides(tmp_path):
    text = 'name = "a"\n[expert]\nsteps = 3'
    changed = load(
        tmp_path, text, "expert.steps=5", "expert.lr=1e-3", "data.source=some folder/x", "router.patch=[1]"
    )
    assert changed.expert.steps == 5
    assert changed.expert.lr == 1e-3
    assert changed.data.source == str(Path.cwd() / "some folder" / "x")  # --set is relative to where one is
    assert changed.router.patch == (1,)


@pytest.mark.parametrize("wrong", ["expert.steps", "=3", "name.first=3"])
def test_a_malformed_override_says_how_to_write_it(tmp_path, wrong):
    with pytest.raises(ConfigError, match="--set"):
        load(tmp_path, 'name = "a"', wrong)


def test_what_is_resolved_can_be_read_again():
    run = config.RunConfig(name="a", expert=config.ExpertConfig(patch=(4, 2)))
    text = json.dumps(run.model_dump(mode="json"))
    assert config.validate(json.loads(text), "resolved.json") == run


def test_every_key_says_what_it_means():
    def undocumented(model: type[config.Section]) -> list[str]:
        return [
            f"{model.__name__}.{name}"
            for name, field in model.model_fields.items()
            if not field.description and not isinstance(field.default, config.Section)
        ]

    sections = [type(field.default) for field in config.RunConfig.model_fields.values()]
    sections = [
        section for section in sections if isinstance(section, type) and issubclass(section, config.Section)
    ]
    assert [name for section in sections for name in undocumented(section)] == []


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-12, max_value=1e3))
def test_numbers_survive_the_command_line(value):
    tree: dict[str, object] = tomllib.loads('name = "a"')
    reading._assign(tree, f"expert.lr={value!r}")
    assert config.validate(tree, "x").expert.lr == value


@given(st.text(max_size=40))
def test_any_text_as_override_is_understood_or_refused(text):
    tree: dict[str, object] = {"name": "a"}
    try:
        reading._assign(tree, text)
        config.validate(tree, "x")
    except ConfigError as error:
        assert str(error)


OVERRIDES = """
name = "a"
[expert]
steps = 100
width = 64
heads = 4
[[expert.override]]
clusters = [0, 3]
path = "cosine"
prediction = "noise"
[[expert.override]]
clusters = [5]
steps = 7
batch = 2
"""


def test_named_clusters_have_settings_of_their_own(tmp_path):
    run = load(tmp_path, OVERRIDES)
    assert [run.expert_for(k).prediction for k in range(5)] == [
        "noise",
        "velocity",
        "velocity",
        "noise",
        "velocity",
    ]
    assert run.expert_for(3).path == "cosine"
    assert (run.expert_for(3).steps, run.expert_for(3).width) == (100, 64)
    assert (run.expert_for(5).steps, run.expert_for(5).batch, run.expert_for(5).path) == (7, 2, "linear")
    assert run.expert_for(1).override == ()
    assert config.validate(json.loads(json.dumps(run.model_dump(mode="json"))), "x") == run


def test_an_override_of_one_cluster_does_not_touch_another(tmp_path):
    plain, mixed = (
        load(tmp_path, 'name = "a"\n[expert]\nsteps = 100'),
        load(tmp_path, 'name = "a"\n[expert]\nsteps = 100\n[[expert.override]]\nclusters = [2]\nlr = 1.0'),
    )
    assert plain.expert_for(1) == mixed.expert_for(1)
    assert plain.expert_for(2) != mixed.expert_for(2)


def test_overrides_on_the_command_line(tmp_path):
    text = 'expert.override=[{clusters=[1], prediction="data", size="S/4"}]'
    run = load(tmp_path, 'name = "a"\n[expert]\nwidth = 64\nheads = 4', text)
    assert run.expert_for(1).prediction == "data"
    assert (run.expert_for(1).width, run.expert_for(1).patch) == (384, (4, 4))
    assert run.expert_for(0).width == 64


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("clusters = [8]", r"names cluster 8, but this run has clusters 0 to 7"),
        ("clusters = [0]\nstesp = 3", "unknown key 'stesp'.*did you mean 'steps'"),
        ("clusters = [0]\nsteps = 'many'", r"in \[\[expert.override\]\]: 'steps' = 'many'"),
        ("clusters = [0]\noverride = []", "unknown key 'override'"),
        ("clusters = [0]\nheads = 5", "not a multiple of heads 5"),
        ("prediction = 'noise'", "clusters' is missing"),
        ("clusters = []", "clusters"),
        ("clusters = [1]\n[[expert.override]]\nclusters = [1]", "names cluster 1 twice"),
        ("clusters = [1]\nsteps = 0", "'expert.steps' = 0"),
    ],
)
def test_wrong_overrides_are_named_in_one_line(tmp_path, lines, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load(tmp_path, f'name = "a"\n[[expert.override]]\n{lines}')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('convert = "exact"', "give both or neither"),
        ('init = "x"\nconvert = "exact"\nprediction = "noise"', "velocity on the linear path"),
        ('path = "circular"', "'expert.path' = 'circular'"),
    ],
)
def test_objectives_that_make_no_sense(tmp_path, lines, said):
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, f'name = "a"\n[expert]\n{lines}')


def test_settings_of_one_section_may_be_written_with_its_name_or_without():
    said = ["sample.entry=1.0", "steps=7", "strategy=top-2", " sample.extrapolations = [1.0, 2.0]"]
    assert config.of_section("sample", said) == {
        **{"entry": 1.0, "steps": 7, "strategy": "top-2"},
        "extrapolations": [1.0, 2.0],
    }
    for elsewhere in ("expert.width=8", "samples.steps=3"):
        with pytest.raises(
            ConfigError, match=rf"--set {elsewhere}: this command takes keys of \[sample\] alone"
        ):
            config.of_section("sample", [elsewhere])
