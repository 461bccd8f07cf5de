"""The exported folder in diffusers itself."""

import importlib
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import atoll
from atoll.errors import ConfigError, RunError
from atoll.publish import export
from tests.serving import same, served, text_encoder

diffusers = pytest.importorskip("diffusers")
pytestmark = pytest.mark.filterwarnings("ignore")  # other people's


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An exported run with texts, and the run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = tmp_path_factory.mktemp("exported")
        run = served(place / "run", "text", text_encoder(place / "encoder"), prompts=["cat"])
        export.export(run, str(place / "out"))
    return place


def expected(folder, **settings):
    return atoll.load(folder / "run").sample(3, prompt="red apple", seed=4, **settings)


def test_the_class_opens_the_folder(folder):
    pipe = atoll.pipeline.AtollPipeline.from_pretrained(folder / "out")
    images = pipe("red apple", num_images=3, seed=4, output_type="latent").images
    assert same(images, expected(folder))


def test_diffusers_opens_it_with_the_code_beside_it(folder):
    pipe = diffusers.DiffusionPipeline.from_pretrained(
        str(folder / "out"), custom_pipeline=str(folder / "out"), trust_remote_code=True
    )
    assert same(pipe("red apple", num_images=3, seed=4, output_type="latent").images, expected(folder))


def test_diffusers_would_download_all_of_it_from_the_hub(folder, tmp_path, monkeypatch):
    """It fetches the files that it thinks a pipeline has; ours must be among them."""
    hub = pytest.importorskip("huggingface_hub")
    module = importlib.import_module("diffusers.pipelines.pipeline_utils")
    names = [str(p.relative_to(folder / "out")) for p in (folder / "out").rglob("*") if p.is_file()]
    siblings = [SimpleNamespace(rfilename=name) for name in names]
    monkeypatch.setattr(module, "model_info", lambda name, **_: SimpleNamespace(siblings=siblings))
    monkeypatch.setattr(module, "hf_hub_download", lambda name, file, **_: str(folder / "out" / file))

    def fetch(name, *, allow_patterns, ignore_patterns, **_):
        chosen = hub.utils.filter_repo_objects(
            names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        for one in chosen:
            (tmp_path / "got" / one).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "out" / one, tmp_path / "got" / one)
        return str(tmp_path / "got")

    monkeypatch.setattr(module, "snapshot_download", fetch)
    pipe = diffusers.DiffusionPipeline.from_pretrained(
        "me/shells", custom_pipeline=str(folder / "out"), trust_remote_code=True, force_download=True
    )
    assert same(pipe("red apple", num_images=3, seed=4, output_type="latent").images, expected(folder))
    missing = {"README.md", "samples.png"}
    assert {p for p in names if not (tmp_path / "got" / p).exists()} <= missing


@pytest.fixture(scope="module")
def pipe(folder):
    return atoll.pipeline.AtollPipeline.from_pretrained(folder / "out")


def test_the_habits_of_diffusers(pipe, folder):
    generator = torch.Generator().manual_seed(4)
    images = pipe("red apple", num_images=3, generator=generator, num_inference_steps=2, guidance_scale=2.0)
    reference = expected(folder, steps=2, guidance=2.0)
    pixels = ((reference + 1) * 127.5).round().clamp(0, 255)
    got = torch.from_numpy(np.stack([np.asarray(image) for image in images.images])).movedim(-1, 1)
    assert torch.equal(got.float(), pixels)
    scaled = pipe(
        "red apple", num_images=3, seed=4, num_inference_steps=2, guidance_scale=2.0, output_type="pt"
    )
    torch.testing.assert_close(scaled.images, pixels / 255)
    assert len(pipe(["cat", "red apple"], seed=0).images) == 2


def test_another_scheduler_is_another_solver(pipe, folder):
    before = pipe.scheduler
    try:
        pipe.scheduler = diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0)
        images = pipe("red apple", num_images=3, seed=4, output_type="latent").images
        assert same(images, expected(folder, solver="heun", shift=3.0))
        pipe.scheduler = diffusers.DPMSolverMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=2.0
        )
        images = pipe("red apple", num_images=3, seed=4, output_type="latent").images
        assert same(images, expected(folder, solver="dpm++", shift=2.0))
        pipe.scheduler = diffusers.DDIMScheduler()
        with pytest.raises(ConfigError, match="DDIMScheduler stands for no solver"):
            pipe("red apple")
    finally:
        pipe.scheduler = before


@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++"])
def test_every_solver_becomes_a_scheduler_and_back(solver, tmp_path):
    run = served(tmp_path / "run", solver=solver, shift=1.5)
    export.export(run, str(tmp_path / "out"))
    pipe = atoll.pipeline.AtollPipeline.from_pretrained(tmp_path / "out")
    assert same(pipe(num_images=2, output_type="latent").images, atoll.load(run.path).sample(2))


def test_saved_again_and_opened_again(pipe, folder, tmp_path):
    pipe.save_pretrained(tmp_path / "again")
    again = atoll.pipeline.AtollPipeline.from_pretrained(tmp_path / "again")
    images = again("red apple", num_images=3, seed=4, output_type="latent").images
    assert same(images, expected(folder))
    assert again.to("cpu").device == torch.device("cpu")
    generic = diffusers.DiffusionPipeline.from_pretrained(
        str(tmp_path / "again"), custom_pipeline=str(tmp_path / "again"), trust_remote_code=True
    )
    assert same(generic("red apple", num_images=3, seed=4, output_type="latent").images, images)


def test_the_class_opens_the_hub(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", lambda name: str(folder / "out"))
    pipe = atoll.pipeline.AtollPipeline.from_pretrained("me/shells")
    assert same(pipe("red apple", num_images=3, seed=4, output_type="latent").images, expected(folder))


def test_mistakes_are_told(folder):
    with pytest.raises(RunError, match="not an exported run"):
        atoll.pipeline.AtollPipeline.from_pretrained(folder / "run")
    with pytest.raises(ConfigError, match="device_map"):
        atoll.pipeline.AtollPipeline.from_pretrained(folder / "out", device_map="auto")


def test_types_that_networks_do_not_compute_in_are_refused(folder):
    with pytest.raises(ConfigError, match="float32, bfloat16 or float16"):
        atoll.pipeline.AtollPipeline.from_pretrained(folder / "out", torch_dtype=torch.float64)


def test_an_unknown_kind_of_answer(pipe):
    with pytest.raises(ConfigError, match="none of pil, np, pt, latent"):
        pipe("cat", output_type="jpeg")


@pytest.fixture(scope="module")
def by_class(tmp_path_factory):
    """A pipeline of a run with classes, and the run."""
    place = tmp_path_factory.mktemp("classes")
    run = served(place / "run", "class")
    export.export(run, str(place / "out"))
    return atoll.pipeline.AtollPipeline.from_pretrained(place / "out"), run


def test_a_class_by_name_and_a_number_of_steps(by_class):
    pipe, run = by_class
    images = pipe(class_labels="shirt", num_inference_steps=10, output_type="latent").images
    assert same(images, atoll.load(run.path).sample(1, label="shirt", steps=10))
    assert len(pipe(class_labels="shirt", num_inference_steps=2).images) == 1


@pytest.mark.parametrize(
    ("words", "same_as"),
    [
        ({"label": "bag"}, {"class_labels": "bag"}),
        ({"class_labels": torch.tensor([2, 0])}, {"class_labels": ["bag", "boot"]}),
        ({"label": np.int64(2)}, {"class_labels": "bag"}),
        ({"steps": 2}, {"num_inference_steps": 2}),
        ({"guidance": 2.0}, {"guidance_scale": 2.0}),
        ({"num": 3}, {"num_images": 3}),
        ({"batch_size": 3}, {"num_images": 3}),
    ],
)
def test_our_own_words_work_too(by_class, words, same_as):
    pipe, _ = by_class
    left, right = (pipe(seed=1, output_type="latent", **some).images for some in (words, same_as))
    assert same(left, right)


def test_the_same_thing_twice_is_refused(by_class):
    with pytest.raises(ConfigError, match="label and class_labels are the same"):
        by_class[0](label="bag", class_labels="bag")
    with pytest.raises(ConfigError, match="num_images is how many in all"):
        by_class[0](label="bag", num_images_per_prompt=2)


def test_series_come_back_as_their_values(by_class, monkeypatch):
    pipe, _ = by_class
    about = {"kind": "series", "dtype": "float32", "mean": [1.0, 2.0, 3.0], "std": [2.0, 3.0, 4.0]}
    monkeypatch.setattr(pipe.ensemble, "contents", pipe.ensemble.contents.model_copy(update=about))
    x_0 = pipe(num_images=2, seed=1, output_type="latent").images
    mean, scale = (torch.tensor(about[name]).view(3, 1, 1) for name in ("mean", "std"))
    for kind in ("np", "pt"):
        got = pipe(num_images=2, seed=1, output_type=kind).images
        assert isinstance(got, np.ndarray if kind == "np" else torch.Tensor)
        np.testing.assert_allclose(np.asarray(got), (x_0 * scale + mean).numpy(), rtol=1e-5, atol=1e-5)


def test_the_pipeline_computes_in_the_type_that_is_asked_for(folder):
    """By `torch_dtype=`, by `.to(dtype)`, through diffusers itself; samples are float32 in any case."""
    out = folder / "out"
    half = atoll.pipeline.AtollPipeline.from_pretrained(out, torch_dtype=torch.bfloat16)
    assert half.dtype == half.ensemble.dtype == torch.bfloat16
    assert next(half.ensemble.sampler.ensemble.experts[0].parameters()).dtype == torch.bfloat16
    made = half("red apple", num_images=2, seed=4, output_type="latent").images
    exact = atoll.load(folder / "run", precision="bfloat16").sample(2, prompt="red apple", seed=4)
    assert made.dtype == torch.float32
    assert same(made, exact)
    half.to(torch.float32)
    assert half.ensemble.dtype == torch.float32
    whole = half("red apple", num_images=2, seed=4, output_type="latent").images
    assert same(whole, atoll.load(folder / "run", precision="float32").sample(2, prompt="red apple", seed=4))
    general = diffusers.DiffusionPipeline.from_pretrained(
        str(out), custom_pipeline=str(out), trust_remote_code=True, torch_dtype=torch.bfloat16
    )
    assert general.ensemble.dtype == torch.bfloat16
