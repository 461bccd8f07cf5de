"""What is told of a source without opening it is what the source says of itself."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from atoll.config import DataConfig, validate
from atoll.data import encode, identity
from atoll.data.sources import open_source
from atoll.runs import Run


def folder(path):
    path.mkdir()
    for index in range(3):
        Image.new("L", (8, 8), index).save(path / f"{index}.png")
        (path / f"{index}.txt").write_text("words")
    return str(path)


def array(path):
    np.savez(path.with_suffix(".npz"), images=np.zeros((4, 8, 8), np.uint8))
    return str(path.with_suffix(".npz"))


def plain(path):
    np.save(path.with_suffix(".npy"), np.zeros((4, 1, 8, 8), np.uint8))
    return str(path.with_suffix(".npy"))


def embedded(path):
    return "fashion-5k"


@pytest.mark.parametrize("make", [folder, array, plain, embedded])
def test_a_source_is_known_without_opening_it(tmp_path, make):
    config = DataConfig(source=make(tmp_path / "source"))
    assert identity.identity_of_source(config) == open_source(config).identity


def test_what_data_is_made_from_is_told_before_and_after(tmp_path):
    config = validate({"name": "a", "data": {"source": array(tmp_path / "source")}}, "a test")
    run = Run(tmp_path / "run", config)
    before = identity.data_from(run)
    assert encode.prepare(run).record.made_from == before
    assert identity.data_from(run) == before


def test_of_the_hub_the_record_counts(tmp_path):
    run = Run(tmp_path, validate({"name": "a", "data": {"source": "hub:owner/name"}}, "a test"))
    assert identity.data_from(run)["source"] is None
    run.data.start({"source": "known"})
    assert identity.data_from(run)["source"] == "known"


def test_it_loads_without_what_opens_sources():
    code = "import sys, atoll.data.identity; print({'torch', 'numpy', 'PIL'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
