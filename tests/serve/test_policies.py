"""Each user has the parts that they may ask, and the mixture of those is exact."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll.errors import ConfigError
from atoll.runs.components import Card
from atoll.serve import policies
from tests import serving

USERS = """
everybody = "licence == cc0"
[users.alice]
token = "alice's own token"
allow = "licence in {cc0, cc-by}"
[users.bob]
token = "bob's own token"
allow = "licence == cc-by"
[users.carol]
token = "carol's own token"
"""
CARDS = {0: Card(licence="cc0"), 1: Card(licence="cc-by", access=("alice", "bob"))}


@pytest.fixture
def known(tmp_path):
    (tmp_path / "users.toml").write_text(USERS)
    return policies.read(tmp_path / "users.toml")


def test_rules_and_access_lists_together(known):
    assert known.allowed(CARDS, "alice") == [0, 1]
    assert known.allowed(CARDS, "bob") == [1]
    assert known.allowed(CARDS, "carol") == [0]  # any licence, but not on the list
    assert known.allowed(CARDS, policies.EVERYBODY) == [0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "users"),
        ("[users.a]\ntoken = 'short'", "token"),
        ("[users.a]\ntoken = 'long enough'\nallow = 'licence'", "a rule has"),
        ("[users.a]\ntoken = 'long enough'\n[users.b]\ntoken = 'long enough'", "two users one token"),
        ("[users.a]\ntoken = 'long enough'\nalow = 'x'", "alow"),
        ("[users", "not TOML"),
    ],
)
def test_files_that_say_nothing_are_refused(tmp_path, text, match):
    (tmp_path / "users.toml").write_text(text)
    with pytest.raises(ConfigError, match=match):
        policies.read(tmp_path / "users.toml")
    with pytest.raises(ConfigError, match="no such file"):
        policies.read(tmp_path / "none.toml")


def as_user(name):
    return {"Authorization": f"Bearer {name}'s own token"}


def test_users_get_what_they_may(client, model, known):
    here = client(policies=known)
    here.app.state.service.models[model.name].__dict__["cards"] = CARDS  # as if the run had these cards
    wish = {"num": 2, "label": 0, "steps": 2, "seed": 5, "format": "npz", "strategy": "full"}
    assert here.post("/v1/samples", json=wish).status_code == 401
    for name, parts in (("alice", None), ("bob", (1,)), ("carol", (0,))):
        answer = here.post("/v1/samples", json=wish, headers=as_user(name))
        assert answer.status_code == 200, answer.text
        alone = {"label": 0, "steps": 2, "seed": 5, "strategy": "full", "experts": parts}
        arrays = np.load(io.BytesIO(answer.content))
        expected = model.sampler.sample(2, **alone)
        assert torch.allclose(torch.from_numpy(arrays["samples"]), expected, atol=1e-5)
        assert parts is None or arrays["shares"][:, list(parts)].sum(1).tolist() == [1.0, 1.0]
    refused = here.post("/v1/samples", json={**wish, "experts": [0]}, headers=as_user("bob"))
    assert refused.status_code == 403
    assert "you may ask parts 1, and no others" in refused.text
    allowed = here.post("/v1/samples", json={**wish, "experts": [1]}, headers=as_user("bob"))
    assert allowed.status_code == 200


def test_a_student_has_all_parts_in_it(client, model, known):
    here = client(policies=known)
    facts = here.app.state.service.models[model.name].__dict__
    facts["cards"], facts["distilled"] = CARDS, True
    wish = {"num": 1, "label": 0, "steps": 2}
    assert here.post("/v1/samples", json=wish, headers=as_user("bob")).status_code == 403
    assert here.post("/v1/samples", json=wish, headers=as_user("alice")).status_code == 200


def test_nobody_gets_anothers_answer_by_its_key(client, model, known):
    here = client(policies=known)
    here.app.state.service.models[model.name].__dict__["cards"] = CARDS
    wish = {"num": 1, "label": 0, "steps": 1, "format": "json"}
    keyed = [
        here.post(
            "/v1/samples", json={**wish, "seed": seed}, headers={**as_user(name), "Idempotency-Key": "k"}
        )
        for name, seed in (("alice", 1), ("bob", 2))
    ]
    assert [answer.status_code for answer in keyed] == [200, 200]  # another user's key is another key


def test_a_server_for_users_alone_may_listen_beyond_this_machine(tmp_path):
    from atoll.serve import listening

    (tmp_path / "users.toml").write_text(USERS)
    assert policies.read(tmp_path / "users.toml").tokens
    listening.check_door("0.0.0.0", None, True)


def test_parts_that_are_open_to_some_are_closed_to_all_others(tmp_path):
    """Without a file of users as well: access lists come with the parts."""
    assert policies.Policies().allowed(CARDS, policies.EVERYBODY) == [0]
    run = serving.served(tmp_path / "run")
    assert replace(policies.Policies(), tokens={}).allowed({0: Card()}, "x") == [0]
    assert run.members.serving(2) == [0, 1]
