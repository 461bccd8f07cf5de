"""Experts from folders: adapters share one base in memory, whoever is asked, and come and go without it."""

import shutil
from pathlib import Path

import pytest
import torch

import atoll
from atoll import config, plan
from atoll.errors import CorruptError, RunError
from atoll.models import checkpoint
from atoll.models.sharing import AdaptedExpert
from atoll.publish import export
from atoll.runs import Run, Stage, stamped, write_json
from atoll.runs.records import ExpertContents
from atoll.sampling import bases, building
from atoll.sampling.opening import open_run_model
from atoll.sampling.roster import Roster
from atoll.train import jobs
from tests.thorough import some


@pytest.fixture(scope="module")
def _adapted(tmp_path_factory: pytest.TempPathFactory, _tiny_data: Path) -> Path:
    """A start, two adapters of it, a full expert and a router, made once for all tests of this file."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    tree = Run.open(_tiny_data).config.model_dump(mode="json")
    mixed = {"clusters": [2], "adapter": {"rank": 2, "tokens": 1}}
    other = {"clusters": [0], "adapter": {"rank": 3, "tokens": 0, "targets": "attention"}}
    tree |= {
        "start": {"steps": 4, "batch": 8, "lr": 1e-2},
        "expert": {**tree["expert"], "override": [mixed, other]},
        "name": "adapted",
    }
    folder.mkdir()
    for name in ("data", "partition"):
        (folder / name).symlink_to(_tiny_data / name)
    run = Run(folder, config.validate(tree, "a test"))
    write_json(folder / "resolved.json", stamped(run.config.model_dump(mode="json")))
    jobs.start(run)
    for k in range(3):
        jobs.expert(run, k)
    jobs.router(run)
    return folder


@pytest.fixture
def adapted(_adapted: Path, tmp_path: Path) -> Run:
    """The same as a folder of one's own."""
    shutil.copytree(_adapted, tmp_path / "run", symlinks=True)
    return Run.open(tmp_path / "run")


def test_checkpoints_hold_the_adapter_only(adapted):
    sizes = [(adapted.expert(k).path / checkpoint.WEIGHTS).stat().st_size for k in range(3)]
    whole = (adapted.start.path / checkpoint.WEIGHTS).stat().st_size
    assert sizes[1] == whole
    assert sizes[0] < whole / 4
    assert sizes[2] < whole / 3
    state = sorted((adapted.expert(2).path / "state").glob("*.safetensors"))[-1]
    names = checkpoint.read_tensors(state).keys()
    assert names
    assert all("lora" in name or ".tokens." in name for name in names)
    about = checkpoint.read_blueprint(adapted.expert(2).path / checkpoint.CONFIG).adapter
    assert about is not None
    assert about.base == adapted.start.record.files[checkpoint.WEIGHTS]


def test_one_base_for_all(adapted):
    experts = atoll.load(adapted.path).ensemble.experts
    assert isinstance(experts, Roster)
    first, second = experts[0], experts[2]
    assert isinstance(first, AdaptedExpert)
    assert isinstance(second, AdaptedExpert)
    assert first.base is second.base
    assert not isinstance(experts[1], AdaptedExpert)
    assert len(set(experts.kin)) == 3, (
        "a network of its own is no adapter's kin, nor are adapters of two ranks"
    )


@pytest.mark.parametrize("strategy", some(["ancestral", "top-1", "top-2", "full"], 2))
def test_samples_are_those_of_merged_weights(adapted, strategy, tmp_path):
    """Each adapter written out as a network by itself; tokens cannot be, so they are left out."""
    tensors = checkpoint.read_tensors(adapted.expert(2).path / checkpoint.WEIGHTS)
    quiet = {name: value * 0 if name.endswith("values") else value for name, value in tensors.items()}
    write(adapted.expert(2), quiet, checkpoint.read_blueprint(adapted.expert(2).path / checkpoint.CONFIG))
    how = {"num": 7, "strategy": strategy, "steps": 3, "seed": 5}
    found = atoll.load(adapted.path).sample(**how)
    for k in (0, 2):
        stage = adapted.expert(k)
        own = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
        if own.adapter is not None and own.adapter.tokens:
            own = own.model_copy(update={"adapter": own.adapter.model_copy(update={"tokens": 0})})
            kept = {name: value for name, value in quiet.items() if ".tokens." not in name}
            write(stage, kept, own)
        write(stage, *bases.weights(stage, bases.of_run(adapted)))
    torch.testing.assert_close(atoll.load(adapted.path).sample(**how), found, rtol=1e-4, atol=1e-5)


def write(stage: Stage, tensors: dict[str, torch.Tensor], blueprint: checkpoint.Blueprint) -> None:
    """Other files in the place of an expert's."""
    jobs.publish(stage, blueprint, tensors, dict(stage.record.made_from), ExpertContents)


def test_a_swap_loads_the_adapter_and_nothing_else(adapted, monkeypatch):
    ensemble = atoll.load(adapted.path).ensemble
    experts = ensemble.experts
    assert isinstance(experts, Roster)
    before, base = experts[2], experts[0].base
    loads = noted(monkeypatch)
    building.swap(ensemble, 2, adapted.expert(0))
    after = experts[2]
    assert loads == []
    assert after is not before
    assert after.base is base
    assert experts.kin[2] == experts.kin[0]
    x_t, t = torch.randn(2, 1, 28, 28), torch.rand(2)
    assert torch.equal(after(x_t, t, None), experts[0](x_t, t, None))


def test_what_does_not_fit_is_not_put_in_anyones_place(adapted):
    ensemble = atoll.load(adapted.path).ensemble
    before, stage = ensemble.experts[2], adapted.expert(0)
    about = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    write(
        stage,
        checkpoint.read_tensors(stage.path / checkpoint.WEIGHTS),
        about.model_copy(update={"classes": 3}),
    )
    with pytest.raises(RunError, match="told something else"):
        building.swap(ensemble, 2, stage)
    write(stage, {"nothing": torch.ones(1)}, about)
    with pytest.raises(CorruptError, match="does not fit"):
        building.swap(ensemble, 2, stage)
    assert ensemble.experts[2] is before


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Weights of whole networks that are loaded from now on."""
    loads: list[Path] = []
    load = checkpoint.load

    def note(weights: Path, config: Path, device: torch.device) -> object:
        loads.append(weights)
        return load(weights, config, device)

    monkeypatch.setattr(checkpoint, "load", note)
    return loads


def test_few_resident_adapters_come_and_go_on_one_base(adapted, monkeypatch):
    how = {"num": 8, "strategy": "full", "steps": 2}
    exact = atoll.load(adapted.path).sample(**how)
    loads = noted(monkeypatch)
    model = atoll.load(adapted.path, resident=1)
    torch.testing.assert_close(model.sample(**how), exact)
    experts = model.ensemble.experts
    assert isinstance(experts, Roster)
    assert experts.loads > 3
    assert loads.count(adapted.start.path / checkpoint.WEIGHTS) == 1


def test_a_lone_adapter_finds_its_base_in_its_run(adapted, tmp_path):
    sampled = atoll.load(adapted.expert(2).path, precision="float32").sample(2, steps=2)
    exact = atoll.load(adapted.path, experts=[2], precision="float32").sample(2, steps=2, strategy="full")
    torch.testing.assert_close(sampled, exact)
    shutil.copytree(adapted.expert(2).path, tmp_path / "elsewhere" / "alone")
    with pytest.raises(RunError, match="adapter of a network that is not here"):
        atoll.load(tmp_path / "elsewhere" / "alone").sample(1, steps=1)


def test_an_export_takes_the_base_along(adapted, tmp_path):
    export.export(adapted, str(tmp_path / "out"))
    how = {"num": 5, "strategy": "full", "steps": 2}
    exact = atoll.load(adapted.path).sample(**how)
    shutil.rmtree(adapted.path)
    torch.testing.assert_close(atoll.load(tmp_path / "out").sample(**how), exact)


def test_a_plan_counts_adapters_by_what_is_written(adapted):
    jobs_of = plan.plan(adapted.config)["jobs"]
    for k in range(3):
        tensors = checkpoint.read_tensors(adapted.expert(k).path / checkpoint.WEIGHTS)
        assert jobs_of[f"expert {k}"]["parameters"] == sum(value.numel() for value in tensors.values())
        assert jobs_of[f"expert {k}"]["upload_bytes"] == sum(value.nbytes for value in tensors.values())
    assert jobs_of["expert 2"]["flops"] < jobs_of["expert 1"]["flops"]
    assert jobs_of["expert 2"]["disk_bytes"] < jobs_of["expert 1"]["disk_bytes"] / 2


def test_a_damaged_base_is_told(adapted):
    (adapted.start.path / checkpoint.WEIGHTS).write_bytes(b"nothing")
    with pytest.raises((CorruptError, RunError), match=r"start|weights"):
        atoll.load(adapted.path).sample(4, strategy="full", steps=1)


def test_an_adapter_that_comes_shares_the_base_and_the_router_that_are_here(adapted):
    """A run that is opened again after a part has come or gone loads nothing that it has."""
    first = open_run_model(adapted)
    first.sample(2, strategy="full", steps=1)
    again = open_run_model(adapted, before=first)
    assert again.ensemble.shelf is first.ensemble.shelf
    assert again.ensemble.router is first.ensemble.router
    assert [again.ensemble.experts[k] for k in range(3)] == [first.ensemble.experts[k] for k in range(3)]
    assert torch.equal(again.sample(2, steps=1), first.sample(2, steps=1))
