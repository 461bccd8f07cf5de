import base64
import io

import pytest
from PIL import Image

from atoll.serve.limits import Limits


def asked(one, **said):
    return one.post("/v1/images/generations", json={"prompt": "bag", **said})


def opened(data):
    return Image.open(io.BytesIO(base64.b64decode(data["b64_json"])))


def test_a_class_name_is_a_prompt(client, model):
    answer = asked(client(), n=2, seed=3).json()
    images = [opened(data) for data in answer["data"]]
    assert [image.text["class"] for image in images] == ["bag", "bag"]
    assert images[0].size == (8, 8)
    assert answer["created"] > 0


def test_without_a_seed_every_picture_is_another(client):
    one = client()
    assert asked(one).json()["data"] != asked(one).json()["data"]
    assert asked(one, seed=1).json()["data"] == asked(one, seed=1).json()["data"]


def test_pictures_have_the_size_that_was_asked_for(client):
    one = client()
    assert opened(asked(one, size="64x32").json()["data"][0]).size == (64, 32)
    assert opened(asked(one, size="auto").json()["data"][0]).size == (8, 8)
    assert asked(one, size="9999x9999").status_code == 422


def test_a_picture_by_its_address(client):
    one = client(token="long enough")
    one.headers["Authorization"] = "Bearer long enough"
    url = asked(one, response_format="url").json()["data"][0]["url"]
    del one.headers["Authorization"]
    answer = one.get(url)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert one.get(url + "x").status_code == 404


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "../../secrets", "%00", "a" * 5000])
def test_names_of_files_never_reach_the_disk(client, name, monkeypatch):
    one = client()
    monkeypatch.setattr("builtins.open", lambda *arguments, **options: pytest.fail(str(arguments)))
    assert one.get(f"/v1/images/files/{name}").status_code == 404


def test_what_other_clients_say_besides_is_no_mistake(client):
    assert asked(client(), quality="hd", style="vivid", background="auto", user="me").status_code == 200


def test_limits_hold_here_as_well(client):
    assert asked(client(limits=Limits(num=2)), n=3).status_code == 422


def test_models_are_listed_with_what_they_make(client):
    one = client()
    (card,) = one.get("/v1/models").json()["data"]
    assert (card["id"], card["condition"], card["classes"]) == ("run", "class", ["boot", "shirt", "bag"])
    assert one.get("/v1/models/run").json() == card
    assert one.get("/v1/models/other").status_code == 404


def test_a_model_that_is_told_nothing_takes_any_prompt(tmp_path):
    from starlette.testclient import TestClient

    from atoll.serve.app import create_app
    from atoll.serve.models import open_models
    from tests.serving import served

    with TestClient(create_app(open_models(served(tmp_path / "plain").path))) as one:
        assert asked(one, prompt="whatever").status_code == 200
