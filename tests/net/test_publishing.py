"""What strangers are told of a run leads them to the same samples, and to no place of this machine."""

import json

import numpy as np
import pytest

from atoll import config
from atoll.data import encode
from atoll.data.identity import data_from
from atoll.errors import ConfigError
from atoll.net.publishing import located, pinned, published
from atoll.runs import Run


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "mine" / "pictures"
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 255, (12, 8, 8), dtype=np.uint8)
    np.savez(folder / "set.npz", images=values)
    return folder


def run_of(tiny, *settings):
    return Run.create(config.load(tiny, settings), tiny)


@pytest.mark.parametrize("source", ["", "/set.npz", "/*.npz"])
def test_a_source_is_found_again_elsewhere_and_is_the_same(tiny, tmp_path, pictures, source):
    run = run_of(tiny, f"data.source='{pictures}{source}'", "launch.store='s3://bucket/secret'")
    public = published(run)
    text = json.dumps(public.config.model_dump(mode="json"))
    assert str(tmp_path) not in text and "secret" not in text
    there = tmp_path / "stranger"
    for name, path in public.files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(path.read_bytes())
    other = Run(there, located(public.config, there))
    encode.prepare(other)
    assert other.data.contents.rows == 12
    assert data_from(other)["source"] == data_from(run)["source"]
    assert other.data.record.made_from == encode.prepare(run).record.made_from


def test_a_stranger_cannot_make_us_read_elsewhere(tiny, tmp_path):
    evil = config.load(tiny, ["data.source='/etc/../etc/passwd'"])
    assert located(evil, tmp_path).data.source == str(tmp_path / "source" / "passwd")


def test_what_machines_would_choose_is_named(tiny):
    before = config.load(tiny, ["expert.precision='bfloat16'", "router.tracking=['wandb']"])
    after = pinned(before)
    assert (after.expert.precision, after.expert.compile) == ("bfloat16", "off")
    assert (after.router.precision, after.router.tracking) == ("float32", ())
    assert after.encode == before.encode
    assert pinned(after) == after


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("encode.features='some/model'", "atoll prepare"),
        ("partition.like='runs/other'", "atoll partition"),
        ("data.source='hub:some/set'", "on the Hub"),
    ],
)
def test_what_workers_cannot_have_is_made_here_first(tiny, setting, words):
    with pytest.raises(ConfigError, match=words):
        published(run_of(tiny, setting))


def test_workers_judge_by_what_they_have(tiny):
    """Where a run measures itself, nobody needs a model from elsewhere for it."""
    with pytest.raises(ConfigError, match="atoll evaluate"):
        published(run_of(tiny, "evaluate.at_end=true", "evaluate.features=['inception']"))
    assert published(run_of(tiny, "evaluate.features=['inception']", "name='later'")).config
    assert published(run_of(tiny, "evaluate.at_end=true", "name='own'")).config.evaluate.at_end
