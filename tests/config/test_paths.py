"""A recipe means the same from every folder."""

from pathlib import Path
from typing import Any

import pytest

from atoll import config
from atoll.config.paths import anchored
from atoll.data.encode import prepare
from atoll.errors import DataError
from atoll.runs import Run
from tests.data.conftest import encoded, picture

RECIPE = 'name = "mine"\n[data]\nsource = "pictures"\nmax_skipped = 0.0\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe beside its pictures; commands run elsewhere."""
    (tmp_path / "recipes" / "pictures").mkdir(parents=True)
    for index in range(3):
        (tmp_path / "recipes" / "pictures" / f"{index}.png").write_bytes(encoded(picture(index)))
    (tmp_path / "recipes" / "mine.toml").write_text(RECIPE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_source_is_relative_to_the_recipe_and_resumes_from_anywhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = config.load(Path("../recipes/mine.toml"))
    run = Run.create(resolved, place / "recipes" / "mine.toml")
    assert prepare(run).contents.rows == 3
    monkeypatch.chdir(place)
    again = Run.open(run.path.resolve())
    assert Path(again.config.data.source).resolve() == place / "recipes" / "pictures"
    before = (run.data.path / "done.json").stat().st_mtime_ns
    prepare(again)
    assert (run.data.path / "done.json").stat().st_mtime_ns == before


def test_the_path_that_was_tried_is_told(place: Path) -> None:
    (place / "recipes" / "mine.toml").write_text(RECIPE.replace("pictures", "picturs"))
    run = Run(place / "run", config.load(place / "recipes" / "mine.toml"))
    with pytest.raises(DataError, match=f"data.source '{place}/recipes/picturs' is neither"):
        prepare(run)


def test_what_is_typed_is_relative_to_where_it_is_typed(place: Path) -> None:
    (place / "elsewhere" / "pictures").mkdir()
    recipe = place / "recipes" / "mine.toml"
    assert config.load(recipe).data.source == str(place / "recipes" / "pictures")
    typed = config.load(recipe, ["data.source=pictures"]).data.source
    assert typed == str(place / "elsewhere" / "pictures")


def test_a_path_that_is_only_here_still_works(place: Path) -> None:
    (place / "elsewhere" / "more").mkdir()
    tree = anchored({"data": {"source": "more"}, "partition": {"file": "a.csv"}}, place / "recipes")
    assert tree["data"]["source"] == str(place / "elsewhere" / "more")
    assert tree["partition"]["file"] == str(place / "recipes" / "a.csv")


def test_names_stay_names(place: Path) -> None:
    (place / "recipes" / "encoder").mkdir()
    tree: dict[str, Any] = {
        "data": {"source": "fashion-5k"},
        "encode": {"autoencoder": "owner/name", "features": "encoder", "text": "~/clip"},
        "partition": {"like": "/runs/mine"},
        "expert": {"steps": 3},
    }
    expected = {**tree, "encode": {**tree["encode"], "features": str(place / "recipes" / "encoder")}}
    assert anchored(tree, place / "recipes") == expected
    assert anchored({"data": {"source": "hub:a/b"}}, place)["data"]["source"] == "hub:a/b"
    assert anchored({"data": {"source": "pictures/*.png"}}, place / "recipes")["data"]["source"].endswith(
        "recipes/pictures/*.png"
    )


def test_tables_of_single_clusters_are_read_alike(place: Path) -> None:
    for name in ("start", "theirs"):
        (place / "recipes" / name).mkdir()
    tables = """
clusters = 2
[[expert.override]]
clusters = [0]
init = "start"
[[expert.override]]
clusters = [1]
adapter = { rank = 2, base = "theirs" }
"""
    recipe = place / "recipes" / "mine.toml"
    recipe.write_text(f"{RECIPE}[partition]{tables}")
    resolved = config.load(recipe)
    assert resolved.expert.of_cluster(0).init == str(place / "recipes" / "start")
    assert resolved.expert.of_cluster(1).begins == str(place / "recipes" / "theirs")
    typed = config.load(recipe, ["expert.override=[{clusters=[0], init='../recipes/theirs'}]"])
    assert Path(typed.expert.of_cluster(0).init or "").resolve() == place / "recipes" / "theirs"


def test_what_judges_is_beside_the_recipe_too(place: Path) -> None:
    for name in ("one", "dino", "classifier"):
        (place / "recipes" / name).mkdir()
    evaluate = {"monolith": "one", "features": ["classifier", "dino", "owner/model"], "clip": "owner/clip"}
    expected = {
        "monolith": str(place / "recipes" / "one"),
        "features": ["classifier", str(place / "recipes" / "dino"), "owner/model"],
        "clip": "owner/clip",
    }
    assert anchored({"evaluate": evaluate}, place / "recipes") == {"evaluate": expected}


@pytest.mark.parametrize("tree", [{"expert": 3}, {"expert": {"override": [3, "a"]}}, {"data": [{}]}, {}])
def test_what_is_no_recipe_is_left_for_whoever_reads_it(tree: dict[str, Any], place: Path) -> None:
    assert anchored(tree, place) == tree
