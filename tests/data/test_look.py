import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atoll import config
from atoll.config import Facts, RunConfig
from atoll.data import hub, look
from atoll.runs import Run


def recipe(source: Path | str, **sections: object) -> RunConfig:
    return config.validate({"name": "a", "data": {"source": str(source)}, **sections}, "a test")


def test_the_embedded_set():
    assert look.look(recipe("fashion-5k")) == Facts((1, 28, 28), 5000, 10, False, kind="image")


def test_series_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2, 64), np.float32))
    assert look.look(recipe(tmp_path / "a.npz")) == Facts((2, 64), 9, 0, False, kind="series")


def test_a_folder_with_captions_and_classes(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (16, 12)).save(tmp_path / "in" / name / "1.png")
        (tmp_path / "in" / name / "1.txt").write_text("a picture")
    facts = look.look(recipe(tmp_path / "in"))
    assert facts == Facts((3, 12, 16), 2, None, True, kind="image")


def test_what_is_not_here_is_not_known(tmp_path, caplog):
    run = Run(tmp_path, recipe(tmp_path / "none.npz"))
    assert look.known(run, source=True) == Facts()
    assert not caplog.text
    assert look.known(run, source=True, note=True) == Facts()
    assert "none.npz" in caplog.text


def test_the_hub_is_not_asked(monkeypatch):
    monkeypatch.setattr("atoll.data.sources.open_source", lambda data: pytest.fail("asked"))
    assert look.look(recipe("hub:owner/name")) == Facts()


def test_latents_have_the_shape_that_the_autoencoder_gives(tmp_path):
    folder = tmp_path / "vae"
    folder.mkdir()
    about = {"latent_channels": 4, "block_out_channels": [8, 8, 8]}
    (folder / "config.json").write_text(json.dumps(about))
    facts = look.look(recipe("fashion-5k", encode={"autoencoder": str(folder)}))
    assert facts.shape == (4, 7, 7)
    assert look.look(recipe("fashion-5k", encode={"autoencoder": "owner/name"})).shape is None


def test_a_record_is_believed_before_the_source(prepared):
    run: Run = prepared("data.source=nowhere.npz")
    assert look.known(run, source=True).shape == (1, 28, 28)
    assert look.known(run).classes == 10


def test_without_record_or_look_nothing_is_known(tmp_path):
    assert look.known(Run(tmp_path, recipe("fashion-5k"))) == Facts()


def test_who_has_the_samples_needs_no_network(tmp_path, prepared, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(hub, "check_reachable", asked.append)
    look.require_network(Run(tmp_path, recipe("hub:owner/name")))
    assert asked == ["owner/name"]
    stored = config.validate(
        {"name": "a", "data": {"source": "hub:o/n"}, "launch": {"store": "/s"}}, "a test"
    )
    for run in (Run(tmp_path, recipe("fashion-5k")), Run(tmp_path, stored)):
        look.require_network(run)
    run = prepared()
    of_hub = run.config.data.model_copy(update={"source": "hub:owner/name"})
    look.require_network(Run(run.path, run.config.model_copy(update={"data": of_hub})))
    assert len(asked) == 1
