"""The page says what the model can be asked; all the rest is the API's."""

import html
import json
import re
from types import SimpleNamespace

import pytest

from atoll.config import SampleConfig
from atoll.serve import server
from atoll.serve.playground import about, strategies


def test_the_page_knows_the_model(client):
    answer = client(pages=server.PAGES).get("/")
    assert answer.status_code == 200
    assert "<option>boot</option><option>shirt</option><option>bag</option>" in answer.text
    models = json.loads(html.unescape(re.search(r'data-models="([^"]*)"', answer.text)[1]))
    assert [model["id"] for model in models] == ["run"]
    assert (models[0]["parts"], models[0]["steps"], models[0]["condition"]) == ([0, 1], 3, "class")
    assert models[0]["guided"] is True and models[0]["curve"] is False
    assert "Live" not in answer.text, "nothing is watched"
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_it_is_seen_without_the_token_and_tells_no_samples(client):
    assert client(pages=server.PAGES, token="correct horse").get("/").status_code == 200


def test_pages_are_no_part_of_the_api(client):
    paths = client(pages=server.PAGES).get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith(("/watch", "/static"))]


@pytest.mark.parametrize(
    ("experts", "own", "offered"),
    [
        (1, "auto", []),
        (2, "auto", ["auto", "full", "top-1", "ancestral"]),
        (8, "top-2", ["top-2", "full", "top-1", "ancestral"]),
    ],
)
def test_strategies_that_make_a_difference(experts, own, offered):
    sampler = SimpleNamespace(
        ensemble=SimpleNamespace(experts=[None] * experts, absent=frozenset()),
        defaults=SampleConfig(strategy=own),
    )
    assert strategies(SimpleNamespace(sampler=sampler)) == offered


@pytest.mark.parametrize(
    ("kind", "weak", "maps", "guided"),
    [
        ("none", False, False, False),
        ("none", True, False, True),
        ("class", False, False, True),
        ("class", False, True, False),
        ("none", True, True, False),
    ],
)
def test_guidance_is_offered_where_there_is_something_to_move_away_from(kind, weak, maps, guided):
    ensemble = SimpleNamespace(
        experts=[None], absent=frozenset(), kind=kind, weak=object() if weak else None, maps=maps
    )
    sampler = SimpleNamespace(ensemble=ensemble, defaults=SampleConfig())
    model = SimpleNamespace(name="run", kind="image", shape=(1, 8, 8), sampler=sampler, run=None)
    assert about(model)["guided"] is guided
