import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import atoll
from atoll.config import SharedConfig, StartConfig
from atoll.errors import AtollError, ConfigError, CorruptError, RunError
from atoll.publish import export
from atoll.runs import DONE, Run, read_json, write_json
from atoll.sampling import sample
from atoll.sampling.opening import open_model, open_run
from atoll.train import distil
from tests.serving import network, same, served


@pytest.fixture
def run(tmp_path):
    return served(tmp_path / "run")


def test_the_same_samples_bit_for_bit(run, tmp_path):
    export.export(run, str(tmp_path / "out"))
    for settings in ({}, {"strategy": "top-1", "seed": 3}, {"strategy": "ancestral", "solver": "heun"}):
        before, after = (atoll.load(path).sample(5, **settings) for path in (run.path, tmp_path / "out"))
        assert same(before, after)
    assert before.std() > 0.1


def test_the_folder_holds_what_it_says_and_nothing_of_the_data(run, tmp_path):
    answer = export.export(run, str(tmp_path / "out"), "cc-by-4.0")
    files = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    network = ("config.json", "done.json", "weights.safetensors")
    assert files == {
        *("README.md", "model_index.json", "pipeline.py", "samples.png", "ensemble/component.py"),
        *(f"ensemble/{place}/{name}" for place in ("experts/00", "experts/01", "router") for name in network),
        *("ensemble/partition/done.json", "ensemble/resolved.json", "scheduler/scheduler_config.json"),
    }
    assert answer["files"] == len(files)
    index = json.loads((tmp_path / "out" / "model_index.json").read_text())
    assert index["scheduler"] == ["diffusers", "FlowMatchEulerDiscreteScheduler"]


def test_what_samples_are_guided_away_from_goes_along(tmp_path):
    run = served(tmp_path / "run", against="start", guidance=2.0)
    config = run.config.model_copy(update={"start": StartConfig()})
    write_json(run.path / "resolved.json", config.model_dump(mode="json"))
    network(run.start, "none", "start", seed=9)
    export.export(Run.open(run.path), str(tmp_path / "out"))
    for settings in ({}, {"guidance": 1.0}):
        before, after = (atoll.load(path).sample(5, **settings) for path in (run.path, tmp_path / "out"))
        assert same(before, after)
    assert not same(before, atoll.load(tmp_path / "out").sample(5)), "guidance does something"


def test_a_start_that_is_told_nothing_goes_along(tmp_path):
    run = served(tmp_path / "run", kind="class", against="start", untold=True, guidance=2.0)
    config = run.config.model_copy(update={"start": StartConfig()})
    write_json(run.path / "resolved.json", config.model_dump(mode="json"))
    network(run.start, "class", "start", seed=9)
    export.export(Run.open(run.path), str(tmp_path / "out"))
    before, after = (atoll.load(path).sample(5) for path in (run.path, tmp_path / "out"))
    assert same(before, after)
    assert not same(before, atoll.load(run.path, untold=False).sample(5))
    with pytest.raises(ConfigError, match="stands for nobody else"):
        atoll.load(run.path).sample(5, strategy="top-1", rest="start")


def test_the_network_for_low_noise_goes_along(tmp_path):
    run = served(tmp_path / "run")
    config = run.config.model_copy(update={"shared": SharedConfig(below=0.6)})
    plain = atoll.load(run.path).sample(5)
    write_json(run.path / "resolved.json", config.model_dump(mode="json"))
    network(run.shared, "none", "shared", seed=9)
    export.export(Run.open(run.path), str(tmp_path / "out"))
    before, after = (atoll.load(path).sample(5) for path in (run.path, tmp_path / "out"))
    assert same(before, after)
    assert not same(before, plain)


def test_exporting_what_was_exported(run, tmp_path):
    export.export(run, str(tmp_path / "one"))
    export.export(open_run(tmp_path / "one"), str(tmp_path / "two"))
    assert same(atoll.load(run.path).sample(2), atoll.load(tmp_path / "two").sample(2))


def test_the_card_says_how_to_use_it_and_what_it_was_made_of(run, tmp_path):
    export.export(run, str(tmp_path / "out"), "cc-by-4.0")
    _, head, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert head.splitlines() == [
        "library_name: diffusers",
        "license: cc-by-4.0",
        "pipeline_tag: unconditional-image-generation",
        "tags:",
        *(f"- {tag}" for tag in ("atoll", "flow-matching", "decentralized-training", "mixture-of-experts")),
    ]
    assert "![5 samples](samples.png)" in body
    assert "| 0 | 30 | 75.0 % | 0.2500 |" in body
    assert "| these weights | cc-by-4.0 |" in body
    assert "need the Python package `atoll`" in body
    with Image.open(tmp_path / "out" / "samples.png") as picture:
        assert picture.width > 100


def test_no_place_of_this_machine_is_told(run, tmp_path, encoder):
    source = tmp_path / "secret" / "pictures"
    source.mkdir(parents=True)
    told = served(tmp_path / "told", "text", encoder, prompts=["cat"])
    told.config = told.config.model_copy(
        update={"data": told.config.data.model_copy(update={"source": str(source)})}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export.export(told, str(tmp_path / "out"))
    texts = [p.read_text() for p in (tmp_path / "out").rglob("*") if p.suffix in (".json", ".md", ".py")]
    assert not [text for text in texts if "secret" in text or str(tmp_path) in text]


@pytest.mark.filterwarnings("ignore")  # other people's
def test_a_text_encoder_from_a_folder_goes_along(tmp_path, encoder):
    run = served(tmp_path / "run", "text", encoder, prompts=["cat"])
    export.export(run, str(tmp_path / "out"))
    encoder.rename(encoder.with_name("elsewhere"))
    try:
        after = atoll.load(tmp_path / "out").sample(2, prompt="red apple")
    finally:
        encoder.with_name("elsewhere").rename(encoder)
    assert same(atoll.load(run.path).sample(2, prompt="red apple"), after)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: text-to-image" in card
    assert 'prompt="cat"' in card


@pytest.mark.thorough
def test_opening_needs_no_diffusers(run, tmp_path):
    export.export(run, str(tmp_path / "out"))
    code = (
        f"import sys, atoll; atoll.load({str(tmp_path / 'out')!r}).sample(1); "
        "print(sorted({'diffusers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_that_is_in_the_way(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        export.export(run, str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_nothing_half_written(run, tmp_path):
    weights = run.expert(1).path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match="experts/01"):
        export.export(run, str(tmp_path / "new" / "out"))
    assert list((tmp_path / "new").iterdir()) == []


def test_damage_after_export_is_noticed(run, tmp_path):
    export.export(run, str(tmp_path / "out"))
    weights = tmp_path / "out" / "ensemble" / "experts" / "00" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CorruptError, match="sha256 differs"):
        atoll.load(tmp_path / "out")


def test_publishing_uploads_the_whole_folder(run, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    made, uploaded = [], {}

    def create_repo(self, repo_id, *, exist_ok):
        made.append((repo_id, exist_ok))

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        uploaded.update({str(p.relative_to(folder_path)): p for p in folder_path.rglob("*") if p.is_file()})
        uploaded["samples"] = atoll.load(folder_path).sample(2)
        return type("Commit", (), {"commit_url": f"https://hub/{repo_id}/commit/1"})

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    answer = export.export(run, "hub:me/shells")
    assert made == [("me/shells", True)]
    assert "ensemble/experts/01/weights.safetensors" in uploaded
    assert same(uploaded["samples"], atoll.load(run.path).sample(2))
    assert answer["address"] == "https://hub/me/shells/commit/1"
    assert not uploaded["README.md"].exists()


def test_a_name_that_is_none_on_the_hub(run):
    with pytest.raises(ConfigError, match="hub:owner/name"):
        export.export(run, "hub:shells")


def test_the_hub_says_no(run, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def create_repo(self, repo_id, *, exist_ok):
        raise OSError("401 Client Error\nwith many lines")

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    with pytest.raises(AtollError, match="401 Client Error; log in"):
        export.export(run, "hub:me/shells")


def test_opening_from_the_hub(run, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    export.export(run, str(tmp_path / "out"))
    monkeypatch.setattr(hub, "snapshot_download", lambda name: str(tmp_path / "out"))
    assert same(atoll.load("hub:me/shells").sample(2), atoll.load(run.path).sample(2))


def test_pictures_of_an_exported_folder_go_where_they_do_no_harm(run, tmp_path):
    export.export(run, str(tmp_path / "out"))
    assert sample.default_out(run.path) == run.path / "samples"
    assert str(sample.default_out(tmp_path / "out")) == "samples"
    written = sample.sample(open_run(tmp_path / "out"), tmp_path / "pictures", num=2)
    np.testing.assert_array_equal(
        np.load(written["samples"], allow_pickle=False), atoll.load(run.path).sample(2).numpy()
    )
    assert torch.get_num_threads() == 1


@pytest.mark.filterwarnings("ignore")
def test_an_autoencoder_from_a_folder_goes_along(tmp_path):
    """Latents of 2x2 become pictures of 4x4 by a tiny autoencoder, before and after export."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    autoencoder = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        latent_channels=3,
    )
    autoencoder.save_pretrained(tmp_path / "autoencoder")
    run = served(tmp_path / "run")
    record = run.partition.record
    latent = {"kind": "latent", "dtype": "float16", "autoencoder": str(tmp_path / "autoencoder")}
    contents = record.contents.model_copy(update={**latent, "mean": (0.5,) * 3, "std": (2.0,) * 3})
    run.partition.write(record.model_copy(update={"contents": contents}))
    export.export(run, str(tmp_path / "out"))
    (tmp_path / "autoencoder").rename(tmp_path / "gone")
    sample.sample(open_run(tmp_path / "out"), tmp_path / "pictures", num=1)
    latents = atoll.load(tmp_path / "out").sample(1) * 2 + 0.5
    with torch.no_grad():
        expected = autoencoder.decode(latents).sample.clamp(-1, 1)
    with Image.open(tmp_path / "pictures" / "sample-00000.png") as picture:
        seen = torch.from_numpy(np.array(picture)).movedim(-1, 0)
    assert torch.equal(seen, ((expected[0] + 1) * 127.5).round().to(torch.uint8))


def test_a_student_is_exported_like_any_run(taught, tmp_path):
    few = {"steps": 2, "trajectories": 0, "batch": 8, "sample_steps": 2}
    run = taught(steps=3, few=few)
    distil.distil(run)
    for name, maps in (("student", False), ("few-step", True)):
        answer = export.export(Run.open(run.path / name), str(tmp_path / name))
        again = atoll.load(answer["folder"])
        assert again.ensemble.maps == maps
        assert torch.equal(again.sample(3, seed=4), atoll.load(run.path / name).sample(3, seed=4))
        card = (tmp_path / name / "README.md").read_text()
        assert "distilled from 3 experts" in card
        assert not (tmp_path / name / "ensemble" / "data").exists()
    assert atoll.load(tmp_path / "few-step").defaults.steps == 2
    # Another student in its place: the few-step one is not of its kin.
    record = read_json(run.student.path / DONE)
    record["files"][next(iter(record["files"]))] = "0" * 64
    write_json(run.student.path / DONE, record)
    with pytest.raises(RunError, match="made from an earlier student"):
        open_model(run.path, model="few-step")
