from types import SimpleNamespace

import pytest
import torch

import atoll
from atoll.data.store import Reader
from atoll.errors import ConfigError, StaleError
from atoll.flow import draws
from atoll.runs import read_json
from atoll.sampling import building
from atoll.train import drawn, jobs


def test_drawn_samples_are_the_experts_own(taught):
    run = taught(data="drawn", drawn=30)
    stage = drawn.draw(run, 1)
    reader = Reader([stage], stage.contents.rows, 0)
    batch = next(reader.batches())
    assert set(batch.cluster.tolist()) == {1}
    seed = draws.generator(0, "drawn/1", 0).initial_seed() % 2**62
    expected = atoll.load(run.expert(1).path).sample(len(batch.x_0), steps=3, seed=seed).clamp(-1, 1)
    # in pixels, and in an order of its own
    apart = torch.cdist(batch.x_0.flatten(1), expected.flatten(1))
    assert apart.min(1).values.max() < 28 * 1.1 / 255
    assert sorted(apart.argmin(1).tolist()) == list(range(len(expected)))


def test_drawing_goes_on_where_it_stopped(taught, monkeypatch):
    monkeypatch.setattr(drawn, "PART", 4)
    run = taught(data="drawn", drawn=30)
    stage = drawn.draw(run, 0)
    whole = {path.name: path.read_bytes() for path in stage.path.glob("*.parquet")}
    assert len(whole) > 2
    (stage.path / "done.json").unlink()
    (stage.path / "part-00001.parquet").unlink()
    drawn.draw(run, 0)
    assert {path.name: path.read_bytes() for path in stage.path.glob("*.parquet")} == whole
    before = read_json(stage.path / "done.json")
    drawn.draw(run, 0)
    assert read_json(stage.path / "done.json") == before
    with pytest.raises(StaleError, match="other rows"):
        drawn.draw(taught(data="drawn", drawn=60), 0)


def test_classes_come_as_often_as_in_the_cluster(prepared):
    run = prepared("condition.kind=class", "sample.steps=1", "student.data=drawn", "student.drawn=900")
    jobs.expert(run, 2)
    stage = drawn.draw(run, 2)
    batch = next(Reader([stage], stage.contents.rows, 0).batches())
    counts = torch.tensor(run.partition.contents.labels[2]).double()
    share = counts / counts.sum()
    found = torch.bincount(batch.label, minlength=10).double() / len(batch.label)
    error = (share * (1 - share) / len(batch.label)).sqrt()
    assert ((found - share).abs() <= 4 * error + 1e-9).all()


def test_without_prompts_there_is_nothing_to_draw(taught, monkeypatch):
    run = taught(data="drawn", drawn=10)
    told = SimpleNamespace(classes=0, text=8)
    monkeypatch.setattr(building, "lone", lambda expert, device: told)
    with pytest.raises(ConfigError, match=r"sample\.prompts"):
        drawn.draw(run, 0)
