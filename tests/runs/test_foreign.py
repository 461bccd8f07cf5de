"""Where an expert from elsewhere is found: its own folder, an export of one, a name on the Hub."""

from pathlib import Path

import pytest

from atoll.data import hub
from atoll.errors import ConfigError
from atoll.runs import Stage
from atoll.runs.foreign import foreign, is_here
from atoll.runs.records import ExpertContents


def expert(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"weights")
    stage: Stage = Stage(folder)
    stage.begin({})
    stage.finish({}, ["weights.safetensors"], ExpertContents())
    return folder


def test_a_folder_of_its_own(tmp_path):
    assert foreign(str(expert(tmp_path / "one"))).path == tmp_path / "one"


@pytest.mark.parametrize("place", ["ensemble/experts", "experts"])
def test_the_only_expert_of_an_export_or_a_run(tmp_path, place):
    inside = expert(tmp_path / place / "00")
    assert foreign(str(tmp_path)).path == inside
    expert(tmp_path / place / "01")
    with pytest.raises(ConfigError, match=f"has 2 experts; name the folder of one, as {inside}"):
        foreign(str(tmp_path))


def test_the_hub_by_its_own_room(tmp_path, monkeypatch):
    expert(tmp_path / "ensemble" / "experts" / "00")
    places = {"hub:owner/name": tmp_path}
    monkeypatch.setattr(hub, "download", places.__getitem__)
    assert foreign("hub:owner/name").path == tmp_path / "ensemble" / "experts" / "00"


def test_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="holds no finished expert"):
        foreign(str(tmp_path / "nothing"))
    assert not is_here(str(tmp_path / "nothing"))
    assert is_here(str(tmp_path))
    assert is_here("hub:owner/name")
