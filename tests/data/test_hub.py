"""Without a network the Hub is asked once, for three seconds, and not more."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.data import hub
from atoll.errors import DataError


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


def test_the_library_has_what_is_asked() -> None:
    real = pytest.importorskip("huggingface_hub")
    assert issubclass(real.errors.HfHubHTTPError, Exception)
    assert isinstance(real.constants.HF_HUB_OFFLINE, bool)
    assert "timeout" in real.HfApi.repo_info.__wrapped__.__code__.co_varnames
