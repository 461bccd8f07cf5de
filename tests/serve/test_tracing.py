"""Whose sample it is, asked over HTTP: what is said in process, and no more of the data than allowed."""

import base64
import io
import re

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from atoll.data.parts import Parts
from atoll.evaluate import calibration, credit, given, neighbours
from atoll.sampling import gallery, makers
from atoll.serve.app import create_app
from atoll.serve.models import open_models


def asked_about(client):
    """A sample as the server makes it, as base64."""
    answer = client.post("/v1/samples", json={"seed": 3, "label": "bag"}).json()
    return answer["samples"][0]["png"]


def test_it_is_what_the_same_picture_gives_in_process(client, model):
    http = client()
    png = asked_about(http)
    answer = http.post("/v1/makers", json={"png": png, "label": "bag"}).json()
    config = model.run.config.credit
    x_0 = given.picture(model.run, base64.b64decode(png), "png")
    made = makers.makers(
        model.sampler.ensemble, x_0, levels=config.levels, batch=config.batch, condition=torch.tensor([2])
    )
    assert answer["posterior"] == pytest.approx(made.facts(0)["posterior"], abs=1e-4)
    assert len(answer["weights"]) == len(answer["times"]) == config.levels
    assert answer["expert"] == int(made.posterior[0].argmax())
    assert answer["sentence"] == makers.SENTENCE + makers.UNFAIR and not answer["calibrated"]
    assert answer["nearest"] is None, "the data are not here"
    untold = http.post("/v1/makers", json={"png": png}).json()
    assert untold["bits_per_value_worse"] != answer["bits_per_value_worse"], "experts were told a class"


def test_samples_are_made_between_two_questions(client, model, monkeypatch):
    http, seen = client(), []
    png, advanced = asked_about(http), makers.advanced

    def watched(look):
        seen.append(len(http.app.state.service.scheduler.crowds[model.name].rows))
        return advanced(look)

    monkeypatch.setattr(makers, "advanced", watched)
    assert http.post("/v1/makers", json={"png": png}).status_code == 200
    assert len(seen) == 2 + 1, "each of two experts once about all levels, and the end"


def wide(side):
    out = io.BytesIO()
    Image.new("1", (side, side)).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either 'png' or 'values'"),
        ({"png": "", "values": [1]}, "either 'png' or 'values'"),
        ({"png": "%%%"}, "no base64"),
        ({"png": "aGVsbG8="}, "not a readable picture"),
        ({"png": wide(4097)}, "pixels are more than"),
        ({"values": [[1, 2], [3]]}, "no array of numbers"),
        ({"values": ["a"]}, "no array of numbers"),
        ({"values": [[[0.0]]]}, r"holds \(1, 1, 1\)"),
        ({"values": [[[1e39]]]}, "no array of numbers|not finite"),
        ({"png": "aGVsbG8=", "path": "/etc/passwd"}, "Extra inputs"),
    ],
)
def test_what_is_no_sample_is_refused_in_one_line(client, body, words):
    answer = client().post("/v1/makers", json=body)
    assert answer.status_code == 422
    assert re.search(words, answer.json()["error"]["message"])


def test_numbers_are_in_the_unit_of_the_data(client, model):
    http = client()
    stored = torch.full((3, 8, 8), 127.5)
    answer = http.post("/v1/makers", json={"values": stored.tolist()}).json()
    same = makers.makers(model.sampler.ensemble, torch.zeros(1, 3, 8, 8), levels=32, batch=128)
    assert answer["posterior"] == pytest.approx(same.facts(0)["posterior"], abs=1e-4)


def test_too_many_are_told_to_come_back(client):
    http = client()
    http.app.state.service.tracing.waiting = 16
    answer = http.post("/v1/makers", json={"values": torch.zeros(3, 8, 8).tolist()})
    assert answer.status_code == 429 and answer.headers["Retry-After"]


@pytest.mark.parametrize("show", [False, True])
def test_training_samples_are_ids_unless_the_server_shows_its_data(finished, show):
    name = bytes(Parts(finished.data).ids(Parts(finished.data).names[0])[5]).hex()
    x_0 = neighbours.by_id(finished, [name])[name]
    out = io.BytesIO()
    gallery.picture(gallery.to_pixels(x_0, finished.partition.contents)[0]).save(out, format="PNG")
    body = {"png": base64.b64encode(out.getvalue()).decode()}
    with TestClient(create_app(open_models(finished.path), show_data=show)) as http:
        near = http.post("/v1/makers", json=body).json()["nearest"]
    assert len(near) == 3 and all(len(part) == 3 for part in near)
    best = min((one for part in near for one in part), key=lambda one: one["distance"])
    assert best["id"] == name and best["distance"] == pytest.approx(0, abs=1e-3)
    assert all((one["png"] is not None) == show for part in near for one in part)
    if show:
        assert base64.b64decode(best["png"]).startswith(b"\x89PNG")


def test_what_was_fitted_of_the_run_makes_the_servers_answers_fair(finished):
    """The same numbers as `atoll credit --picture`, from the same file, as soon as it is there."""
    models = open_models(finished.path)
    sampler = next(iter(models.values())).sampler
    ensemble = sampler.ensemble
    body = {"values": torch.full(tuple(ensemble.shape), 127.5).tolist()}
    with TestClient(create_app(models)) as http:
        plain = http.post("/v1/makers", json=body).json()
        assert not plain["calibrated"]
        calibration.fair(finished.changed(["credit.calibration=8"]), sampler)
        fair = http.post("/v1/makers", json=body).json()
    assert fair["calibrated"] and fair["sentence"] == makers.SENTENCE
    assert fair["posterior"] == pytest.approx(
        credit.trace(finished, torch.zeros(1, *ensemble.shape))[0]["posterior"], abs=1e-4
    )
    assert fair["bits_per_value_worse"] != pytest.approx(plain["bits_per_value_worse"], rel=1e-3)


def test_one_network_makes_everything(client, model):
    http = client()
    ensemble = model.sampler.ensemble
    experts = ensemble.experts
    object.__setattr__(ensemble, "experts", [experts[0]])
    try:
        answer = http.post("/v1/makers", json={"png": ""})
    finally:
        object.__setattr__(ensemble, "experts", experts)
    assert answer.status_code == 422 and "one network" in answer.json()["error"]["message"]
