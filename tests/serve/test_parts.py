"""Parts that come and go under a server: it looks at the run again, and loads only what is new."""

from dataclasses import replace

from atoll.runs.components import Members, write_members
from atoll.serve.policies import Policies


def test_a_part_that_was_dropped_is_asked_no_longer_and_nothing_is_loaded_again(client, model):
    server = client()
    asked = {"num": 2, "steps": 2, "strategy": "full"}
    assert server.post("/v1/samples", json=asked).status_code == 200
    before = model.sampler.ensemble
    write_members(model.run.path, Members(dropped=(1,)))
    assert server.post("/v1/samples", json={**asked, "experts": [1]}).status_code == 200, "not looked at yet"
    answer = server.post("/v1/parts")
    assert (answer.status_code, answer.json()["parts"]) == (200, [0])
    assert server.post("/v1/samples", json={**asked, "experts": [1]}).status_code == 422
    assert server.post("/v1/samples", json=asked).status_code == 200
    after = server.app.state.service.model(None).sampler.ensemble
    assert after.experts[0] is before.experts[0]
    assert after.experts.loads == before.experts.loads
    assert after.router is before.router
    write_members(model.run.path, Members())
    assert server.post("/v1/parts").json()["parts"] == [0, 1]


def test_who_has_a_token_of_their_own_does_not_change_parts(client):
    server = client(token="the server's own", policies=Policies({"alice's own token": "alice"}))
    headers = {"Authorization": "Bearer alice's own token"}
    assert server.post("/v1/parts", headers=headers).status_code == 403
    assert server.post("/v1/parts").status_code == 401
    assert server.post("/v1/parts", headers={"Authorization": "Bearer the server's own"}).status_code == 200


def test_one_network_has_no_parts(client, model):
    server = client()
    server.app.state.service.models[model.name] = replace(model, distilled=True)
    answer = server.post("/v1/parts")
    assert answer.status_code == 422
    assert "is one network" in answer.json()["error"]["message"]
    assert server.post("/v1/parts", params={"model": "nobody"}).status_code == 404
