"""Previews: the same noise every time, by the averaged weights, and training knows nothing of them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from atoll.data import sheets
from atoll.flow import draws, solver
from atoll.models import checkpoint
from atoll.runs import previews as places
from atoll.runs import read_json
from atoll.train import jobs, previews, student


def pixels(path):
    return np.asarray(Image.open(io.BytesIO(path.read_bytes())))


def steps_of(stage):
    return [step for step, _ in places.listed(stage.path)]


def test_an_expert_draws_every_so_often(prepared, tmp_path):
    run = prepared("expert.preview_every=5", "expert.precision=float32")
    stage = jobs.expert(run, 0)
    assert steps_of(stage) == [5, 10]
    assert not any("previews" in name for name in stage.record.files), (
        "how work is done is not what comes of it"
    )
    model, _ = checkpoint.load(
        stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, torch.device("cpu")
    )
    noise = draws.sample_noise(previews.SEED, range(previews.COUNT), (1, 28, 28))
    with torch.no_grad():
        x_0 = solver.integrate(lambda x, t: model(x, t, None), noise, previews.STEPS)
    sheets.page(x_0, run.cluster(0).contents, tmp_path / "by-hand.png", previews.COUNT)
    shown, by_hand = pixels(places.path_of(stage.path, 10)), pixels(tmp_path / "by-hand.png")
    assert shown.shape == by_hand.shape
    assert np.abs(shown.astype(int) - by_hand.astype(int)).max() <= 1


def test_training_does_not_notice(prepared):
    often, never = (
        prepared("expert.preview_every=1", name="often"),
        prepared("expert.preview_every=0", name="never"),
    )
    for run in (often, never):
        jobs.expert(run, 0)
    assert steps_of(often.expert(0)) == list(range(1, 11))
    assert steps_of(never.expert(0)) == []
    states = [read_json(run.expert(0).path / "state" / "latest.json")["sha256"] for run in (often, never)]
    assert states[0] == states[1]
    assert often.expert(0).record == never.expert(0).record


def test_what_is_told_are_conditions_of_the_cluster(prepared):
    run = prepared("condition.kind=class", "expert.preview_every=10")
    stage = jobs.expert(run, 1)
    assert steps_of(stage) == [10]
    from atoll.data.store import Reader

    reader = Reader([run.cluster(1)], 4, 0)
    config = run.config.expert_for(1)
    blueprint = jobs.blueprint_of(run, config, reader)
    told = jobs.preview_of(blueprint, reader).condition
    assert told.tolist() == reader.first(previews.COUNT).label.tolist()


def test_a_router_has_nothing_to_show(prepared):
    run = prepared("router.preview_every=1")
    assert steps_of(jobs.router(run)) == []


def test_a_student_draws_too(taught):
    run = taught(preview_every=5, teacher="label")
    assert steps_of(student.dense(run)) == [5, 10]


@pytest.mark.parametrize("objective", [{"prediction": "noise", "path": "cosine"}])
def test_whatever_a_network_predicts(prepared, objective):
    settings = [f"expert.{key}={value}" for key, value in objective.items()]
    run = prepared("expert.preview_every=10", *settings)
    assert pixels(places.path_of(jobs.expert(run, 0).path, 10)).std() > 0
