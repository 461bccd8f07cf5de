import io
import wave
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll.errors import ConfigError
from atoll.runs.records import SampleFormat
from atoll.serve import answers
from atoll.serve.models import Model
from atoll.serve.tickets import Made, Progress, Ticket

SERIES = SampleFormat(kind="series", dtype="float32", mean=(1.0,), std=(2.0,))


def made(x_0, experts=2):
    return Made(x_0, np.full((len(x_0), experts), 1 / experts, np.float32), "full", None, 0.5)


def ticket(model, num=1):
    async def make():
        return Ticket(model, model.sampler.request(num=num), "user", 0.0)

    import asyncio

    return asyncio.run(make())


@pytest.fixture
def series(model) -> Model:
    ensemble = replace(model.sampler.ensemble, shape=(1, 100))
    return replace(model, contents=SERIES, sampler=replace(model.sampler, ensemble=ensemble))


def listened(content):
    with wave.open(io.BytesIO(content)) as sound:
        frames = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32767
        return frames, (sound.getnchannels(), sound.getframerate(), sound.getnframes())


def test_a_series_is_heard(series):
    x_0 = torch.linspace(-0.9, -0.1, 100).view(1, 1, 100)
    heard, facts = listened(answers.wav(series, made(x_0), 8000))
    assert facts == (1, 8000, 100)
    np.testing.assert_allclose(heard, x_0[0, 0].numpy() * 2 + 1, atol=1e-4)


def test_what_is_too_loud_is_turned_down_as_a_whole(series):
    x_0 = torch.tensor([[[1.0, 0.0, 3.0]]])  # 3, 1 and 7 in the unit of the data
    heard, _ = listened(answers.wav(series, made(x_0), 8000))
    np.testing.assert_allclose(heard, [3 / 7, 1 / 7, 1], atol=1e-4)


def test_pictures_are_not_heard(model, series):
    with pytest.raises(ConfigError, match="cannot be heard"):
        answers.check_wav(model, model.sampler.request(num=1))
    with pytest.raises(ConfigError, match="one sample"):
        answers.check_wav(series, model.sampler.request(num=2))
    answers.check_wav(series, model.sampler.request(num=1))


def test_a_series_is_told_in_its_unit_and_drawn(series):
    x_0 = torch.randn(1, 1, 100)
    told = answers.as_json(ticket(series), made(x_0), answers.pixels(series, x_0))
    np.testing.assert_allclose(told.samples[0].values, x_0[0].numpy() * 2 + 1, rtol=1e-6)
    assert told.samples[0].png is not None


def test_a_latent_without_its_autoencoder_is_shown_by_the_linear_map(model):
    latent = replace(
        model, contents=SampleFormat(kind="latent", dtype="float16", mean=(0.0,) * 3, std=(1.0,) * 3)
    )
    x_0 = torch.randn(2, 3, 8, 8)
    told = answers.as_json(ticket(latent, 2), made(x_0), answers.pixels(latent, x_0))
    assert all(one.png and one.values is None for one in told.samples)
    arrays = np.load(io.BytesIO(answers.npz(latent, made(x_0))))
    np.testing.assert_array_equal(arrays["samples"], x_0.numpy())


def test_numbers_that_nobody_understands_are_no_picture(model):
    plain = replace(model, contents=None)
    with pytest.raises(ConfigError, match="npz"):
        answers.pixels(plain, torch.zeros(1, 3, 8, 8))
    told = answers.as_json(ticket(plain), made(torch.ones(1, 3, 8, 8)), None)
    assert np.array(told.samples[0].values).shape == (3, 8, 8)


def test_only_the_first_samples_are_shown_as_they_form(model):
    num = answers.SHOWN + 4
    event = Progress(1, 5, 0, torch.zeros(num, 3, 8, 8), np.ones((num, 2), np.float32))
    facts = answers.progress(ticket(model, num), event)
    assert len(facts["previews"]) == len(facts["shares"]) == answers.SHOWN
    assert answers.progress(ticket(model), Progress(1, 5, 0)) == {"step": 1, "steps": 5, "done": 0}
