import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atoll.serve.limits import Limits


def test_samples_as_json(client, model):
    answer = client().post("/v1/samples", json={"seeds": [3, 5], "steps": 4, "provenance": True}).json()
    assert (answer["model"], answer["kind"], answer["strategy"], answer["steps"]) == (
        "run",
        "image",
        "full",
        4,
    )
    assert [(one["seed"], one["number"]) for one in answer["samples"]] == [(3, 0), (5, 0)]
    expected = model.sampler.trace(seeds=[3, 5], steps=4)
    np.testing.assert_allclose([one["shares"] for one in answer["samples"]], expected.shares, atol=1e-5)
    assert np.shape(answer["provenance"]["weights"]) == (2, 4, 2)
    np.testing.assert_allclose(answer["provenance"]["times"], expected.times)


def test_arrays_are_those_of_the_sampler(client, model):
    said = {"num": 3, "seed": 9, "solver": "heun", "guidance": 1.5, "label": ["bag", 0]}
    answer = client().post("/v1/samples", json={**said, "format": "npz", "provenance": True})
    arrays = np.load(io.BytesIO(answer.content))
    expected = model.sampler.sample(**said)
    scale = float(expected.abs().max())
    torch.testing.assert_close(torch.from_numpy(arrays["samples"]), expected, atol=1e-5 * scale, rtol=0)
    assert arrays["weights"].shape == (5, 3, 2)
    np.testing.assert_allclose(arrays["values"], arrays["samples"] * 127.5 + 127.5, rtol=1e-5, atol=1e-3)


def test_a_picture_says_how_it_is_made_again(client):
    one = client()
    answer = one.post("/v1/samples", json={"seed": 11, "format": "png", "label": "bag"})
    image: Any = Image.open(io.BytesIO(answer.content))
    assert (answer.headers["content-type"], image.size) == ("image/png", (8, 8))
    assert (image.text["seed"], image.text["class"], image.text["strategy"]) == ("11", "bag", "full")
    again = {"seeds": [int(image.text["seed"])], "label": image.text["class"], "format": "png"}
    assert one.post("/v1/samples", json=again).content == answer.content


def test_several_pictures_are_one_sheet(client):
    answer = client().post("/v1/samples", json={"num": 4, "format": "png"})
    assert Image.open(io.BytesIO(answer.content)).size[0] > 16


def events(text):
    parts = [block.splitlines() for block in text.replace("\r\n", "\n").strip().split("\n\n")]
    pairs = [dict(line.split(": ", 1) for line in lines) for lines in parts if not lines[0].startswith(":")]
    return [(pair["event"], json.loads(pair["data"])) for pair in pairs]


def test_a_stream_is_not_kept_for_who_asks_again(client):
    answer = client().post("/v1/samples", json={"stream": True}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, "leave out" in answer.json()["error"]["message"]) == (422, True)


def test_a_stream_tells_how_samples_form(client):
    one, said = client(), {"num": 2, "seed": 4, "steps": 6}
    answer = one.post("/v1/samples", json={**said, "stream": True, "preview_every": 1})
    assert answer.headers["content-type"].startswith("text/event-stream")
    heard = events(answer.text)
    assert heard[0][0] == "accepted" and heard[-1][0] == "done"
    done, alone = heard[-1][1], one.post("/v1/samples", json=said).json()
    assert [each["png"] for each in done["samples"]] == [each["png"] for each in alone["samples"]]
    shown = [facts for name, facts in heard if name == "progress"]
    assert all(len(facts["previews"]) == 2 for facts in shown)
    assert [facts["step"] for facts in shown] == sorted(facts["step"] for facts in shown)


def test_what_is_cancelled_fails(client):
    one = client()
    heard = []
    with one.stream("POST", "/v1/samples", json={"num": 2, "steps": 1000, "stream": True}) as answer:
        for line in answer.iter_lines():
            heard.append(line)
            if line.startswith("data") and "id" in line and "accepted" in heard[-2]:
                id = json.loads(line.removeprefix("data: "))["id"]
                assert one.delete(f"/v1/samples/{id}").json() == {"id": id, "cancelled": True}
    assert "event: failed" in heard
    assert one.delete(f"/v1/samples/{id}").status_code == 404


WRONG = {
    "num is at most 8": {"num": 9},
    "steps is at most 20": {"steps": 21},
    "there is no class 'shoe'": {"label": "shoe"},
    "takes no prompts": {"prompt": "shoe"},
    "experts are numbered 0 to 1": {"experts": [2]},
    "asks more experts than serve": {"strategy": "top-3"},
    "needs the cluster of every sample": {"strategy": "oracle"},
    "cannot be heard": {"format": "wav"},
    "wishes": {"wishes": 3},
    "steps: Input should be a valid integer": {"steps": "3"},
    "at most 32 characters": {"strategy": "top-" + "1" * 5000},
    "N of sample-N is at most 64": {"strategy": "sample-1000000"},
    "cluster of every sample, not of 1": {"num": 3, "cluster": [0], "strategy": "ancestral"},
    "3 samples and 2 seeds": {"num": 3, "seeds": [1, 2]},
}


@pytest.mark.parametrize(("reason", "said"), WRONG.items())
def test_what_cannot_be_had_is_said_in_one_line(client, reason, said):
    answer = client(limits=Limits(num=8, steps=20)).post("/v1/samples", json=said)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 422
    assert reason in message and "\n" not in message


def test_a_model_that_is_not_there(client):
    answer = client().post("/v1/samples", json={"model": "other"})
    assert answer.status_code == 404
    assert "there are run" in answer.json()["error"]["message"]


def test_who_comes_when_all_is_full_is_told_when_to_come_back(client):
    import threading

    one, go = client(limits=Limits(queue=1)), threading.Event()
    one.app.state.service.scheduler.run(lambda: go.wait(600))
    with one.stream("POST", "/v1/samples", json={"stream": True}) as first:
        lines = first.iter_lines()
        assert next(lines) == "event: accepted"
        answer = one.post("/v1/samples", json={})
        go.set()
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "event: done" in list(lines)
    assert one.post("/v1/samples", json={}).status_code == 200


def test_a_thousand_steps_of_provenance_are_refused_before_they_are_held(client):
    said = {"num": 1000, "steps": 1000, "provenance": True}
    answer = client(limits=Limits(kept=1_000_000)).post("/v1/samples", json=said)
    assert answer.status_code == 422
    assert "provenance" in answer.json()["error"]["message"]
