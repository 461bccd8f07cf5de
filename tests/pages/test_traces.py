import torch

from atoll.data.parts import Parts
from atoll.pages import traces
from atoll.sampling import sample, writer


def test_what_was_found_stands_beside_the_sample_it_was_found_of(finished):
    sample.sample(finished, finished.samples.path, own=True, num=3)
    name = bytes(Parts(finished.data).ids(Parts(finished.data).names[0])[5]).hex()
    near = [{"id": name, "distance": 0.25}]
    record = {
        "samples": [
            {
                "index": index,
                "made_by": 1,
                "shares": [0.25, 0.75, 0.0],
                "expert": 2,
                "posterior": [0.0, 0.1, 0.9],
                "nearest": [[], [], near] if index else None,
            }
            for index in range(2)
        ]
    }
    first, second = traces.own(finished, record)
    assert (first["made_by"], first["share"], first["expert"], first["probability"]) == (1, 0.75, 2, 0.9)
    assert first["nearest"] == []
    assert [one["id"] for one in second["nearest"]] == [name]
    assert second["nearest"][0]["picture"].startswith("data:image/png;base64,")
    assert first["picture"] != second["picture"]


def test_without_samples_or_findings_there_is_nothing(finished):
    assert traces.own(finished, {}) == []
    assert traces.own(finished, {"samples": [{"index": 0}]}) == [], "the samples are not here"
    assert not (finished.samples.path / writer.ARRAY).exists()


def test_a_sample_that_is_not_at_hand_is_an_id(finished):
    assert traces.nearest(finished, [{"id": "00" * 16, "distance": 1.0}])[0]["picture"] is None
    assert traces.shown(finished, torch.zeros(1, 1, 28, 28)).startswith("data:image/png;base64,")
