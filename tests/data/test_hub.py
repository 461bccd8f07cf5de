"""Without a network the Hub is asked once, for three seconds, and not more."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.data import hub
from atoll.data.encode import prepare
from atoll.errors import ConfigError, DataError
from tests.data.conftest import MakeRun
from tests.data.test_arrow import write_arrow


class HubError(Exception):
    """The Hub answers, and says no."""


def library(error: Exception | None, *, offline: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """The Hub's library as far as it is asked, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Api:
        def repo_info(self, name: str, **options: Any) -> None:
            asked.append({"name": name, **options})
            if error is not None:
                raise error

    return SimpleNamespace(
        HfApi=Api,
        constants=SimpleNamespace(HF_HUB_OFFLINE=offline),
        errors=SimpleNamespace(HfHubHTTPError=HubError),
    ), asked


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionError("no route"), OSError("dns")])
def test_no_network_is_one_short_question(error: Exception) -> None:
    fake, asked = library(error)
    with pytest.raises(DataError, match="the Hub cannot be reached .* check the network"):
        hub.check_reachable("owner/name", fake)
    assert asked == [{"name": "owner/name", "repo_type": "dataset", "timeout": hub.PATIENCE}]
    assert hub.PATIENCE < 5


@pytest.mark.parametrize("error", [None, HubError("404")])
def test_a_hub_that_answers_is_there(error: Exception | None) -> None:
    fake, asked = library(error)
    hub.check_reachable("owner/name", fake)
    assert len(asked) == 1


def test_folders_and_caches_need_no_network(tmp_path: Path) -> None:
    for name, offline in ((str(tmp_path), False), ("owner/name", True)):
        fake, asked = library(ConnectionError("no"), offline=offline)
        hub.check_reachable(name, fake)
        assert not asked


def test_the_question_comes_before_what_is_slow_to_load() -> None:
    pytest.importorskip("huggingface_hub")
    code = (
        "import sys; from atoll.data import hub; hub._with_constants(hub.library('hub:a/b')); "
        "print({'datasets', 'pandas', 'torch'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_the_library_has_what_is_asked() -> None:
    real = pytest.importorskip("huggingface_hub")
    assert issubclass(real.errors.HfHubHTTPError, Exception)
    assert isinstance(real.constants.HF_HUB_OFFLINE, bool)
    assert hub._with_constants(hub.library("hub:a/b")) is real
    assert "timeout" in real.HfApi.repo_info.__wrapped__.__code__.co_varnames


def test_what_is_on_the_hub_has_one_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, some files, one file; what goes wrong is told in a line, whatever the library raises."""
    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        if name == "owner/gone":
            raise HubError("404\nwith many lines")
        return str(tmp_path)

    fake = SimpleNamespace(
        snapshot_download=snapshot_download, hf_hub_download=lambda name, file: str(tmp_path / file)
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    assert hub.download("hub:owner/name") == tmp_path
    assert hub.download("owner/name", patterns=("*.json",)) == tmp_path
    assert hub.download("hub:owner/name", file="a.npz") == tmp_path / "a.npz"
    assert asked == [("owner/name", {}), ("owner/name", {"allow_patterns": ["*.json"]})]
    with pytest.raises(DataError, match="hub:owner/gone cannot be had: 404; check its name and access"):
        hub.download("hub:owner/gone")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs the library huggingface_hub; pip install 'atoll\[hf\]'"):
        hub.download("hub:owner/name")


def test_fewer_samples_than_the_card_says_stop_the_command(tmp_path: Path, make_run: MakeRun) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "cards").mkdir()
    write_arrow(tmp_path / "cards")
    card = "---\ndataset_info:\n  splits:\n  - name: train\n    num_bytes: 1\n    num_examples: 41\n---\n"
    (tmp_path / "cards" / "README.md").write_text(card)
    source = f"hub:{tmp_path / 'cards'}"
    with pytest.raises(DataError, match="ends after 40 of 41 samples"):
        prepare(make_run(source))
    assert prepare(make_run(source, data={"max_skipped": 1.0})).contents.rows == 40
