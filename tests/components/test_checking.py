"""Every refusal, in one line, with nothing left behind."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from atoll.components import adding, checking
from atoll.errors import AtollError, ConfigError, CorruptError, RunError
from atoll.models import checkpoint
from atoll.runs import file_digest, read_json, write_json
from atoll.runs.components import DRAWN, ROWS, SIGNATURE
from tests.components.test_making import _write_key


def restamped(stage, **contents):
    """The record made to fit its files again, as whoever cheats would."""
    tree = read_json(stage.path / "done.json")
    tree["files"] = {name: file_digest(stage.path / name) for name in tree["files"]}
    tree["contents"] |= contents
    write_json(stage.path / "done.json", tree)


def refused(run, stage, match, kind=AtollError):
    with pytest.raises(kind, match=match) as error:
        adding.add(run, stage.path)
    assert "\n" not in str(error.value)
    assert not run.component(3).path.exists()
    assert run.members.added == ()


def spoil_weights(stage, change):
    path = stage.path / checkpoint.WEIGHTS
    tensors = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    restamped(stage)


def test_a_component_as_it_was_made_is_taken(finished, component):
    assert checking.check(component.path, finished).digest == component.digest


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.CONFIG, ROWS, DRAWN])
def test_a_digest_that_does_not_match(finished, component, name):
    path = component.path / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    refused(finished, component, "damaged", CorruptError)


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, ROWS])
def test_a_file_that_is_missing_or_leads_elsewhere(finished, component, name, tmp_path):
    shutil.move(component.path / name, tmp_path / "elsewhere")
    refused(finished, component, "missing or no plain file", CorruptError)
    (component.path / name).symlink_to(tmp_path / "elsewhere")
    refused(finished, component, "missing or no plain file", CorruptError)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", ".hidden", "a\\b", "extra.bin"])
def test_hostile_names_of_files(finished, component, name):
    tree = read_json(component.path / "done.json")
    tree["files"][name] = "0" * 64
    write_json(component.path / "done.json", tree)
    refused(finished, component, "names a file|has files")


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 200, "a\nb"])
def test_hostile_names_of_the_component_itself(finished, component, name):
    restamped(component, name=name)
    refused(finished, component, "name", CorruptError)


def test_weights_that_are_no_numbers(finished, component):
    def spoilt(tensors):
        first = next(iter(tensors))
        return {**tensors, first: torch.full_like(tensors[first], torch.nan)}

    spoil_weights(component, spoilt)
    refused(finished, component, "no number", CorruptError)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: dict(list(tensors.items())[1:]),
        lambda tensors: {**tensors, "backdoor": torch.zeros(2)},
        lambda tensors: {name: tensor[..., :1] for name, tensor in tensors.items()},
    ],
)
def test_weights_that_do_not_fit(finished, component, change):
    spoil_weights(component, change)
    refused(finished, component, "does not fit|larger than", CorruptError)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [1, 14, 14]}, "shape"),
        ({"role": "router"}, "role"),
        ({"condition": "class", "classes": 3}, "condition"),
        ({"steps": True}, "steps"),
        ({"network": {"width": 10**6, "depth": 10**4, "heads": 1, "patch": [7, 7]}}, "too large"),
        ({"network": 3}, "damaged"),
    ],
)
def test_another_network_than_the_runs(finished, component, change, match):
    path = component.path / checkpoint.CONFIG
    write_json(path, {**read_json(path), **change})
    restamped(component)
    refused(finished, component, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"base": "a" * 64}, "made on the base aaaaaaaaaaaa, this run's is none"),
        ({"rows": 10**12}, "at most 100 times"),
        ({"rows": 0}, "at most 100 times"),
        ({"prototypes": 7}, "not 7"),
    ],
)
def test_what_a_record_claims(finished, component, change, match):
    restamped(component, **change)
    refused(finished, component, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [1, 14, 14]}, "makes samples"),
        ({"mean": [0.0]}, "mean something else"),
        ({"autoencoder": "other/vae"}, "mean something else"),
        ({"dtype": "float16"}, "mean something else"),
    ],
)
def test_another_space_of_samples(finished, component, change, match):
    samples = read_json(component.path / "done.json")["contents"]["samples"]
    restamped(component, samples={**samples, **change})
    refused(finished, component, match)


def test_the_same_base_is_known_by_its_weights(finished, component):
    """A run with a start takes what was made on that start, and nothing else."""
    from tests import serving

    serving.network(finished.start, "none", "expert", seed=4, shape=(1, 28, 28))
    assert checking.base_of(finished) == file_digest(finished.start.path / checkpoint.WEIGHTS)
    refused(finished, component, "made on the base none", ConfigError)


def test_the_same_part_does_not_come_twice(finished, component, tmp_path):
    adding.add(finished, component.path)
    with pytest.raises(ConfigError, match="is part 3 of this run already"):
        adding.add(finished, component.path)

    def nearly(tensors):
        g = torch.Generator().manual_seed(0)
        return {
            name: tensor + 1e-3 * tensor.abs().mean() * torch.randn(tensor.shape, generator=g)
            for name, tensor in tensors.items()
        }

    spoil_weights(component, nearly)
    with pytest.raises(ConfigError, match="says what part 3 says"):
        adding.add(finished, component.path)
    assert len(finished.members.added) == 1


def test_a_copy_of_an_own_expert_is_refused(finished, component):
    shutil.copyfile(finished.expert(1).path / checkpoint.WEIGHTS, component.path / checkpoint.WEIGHTS)
    restamped(component)
    refused(finished, component, "is part 1 of this run already", ConfigError)


def test_ten_gigabytes_of_weights_are_refused_before_they_are_read(finished, component):
    with (component.path / checkpoint.WEIGHTS).open("r+b") as file:
        file.truncate(10 * 2**30)
    refused(finished, component, "larger than its network", CorruptError)


def test_a_huge_file_is_refused_before_it_is_hashed(finished, component):
    with (component.path / ROWS).open("wb") as file:
        file.truncate(10 * 2**30)
    refused(finished, component, "larger than it can be", CorruptError)
    with (component.path / "done.json").open("ab") as file:
        file.truncate(2**21)
    refused(finished, component, "do not trust it", CorruptError)


def test_samples_that_are_none(finished, component):
    save_file({"x_0": torch.full((16, 1, 28, 28), torch.inf)}, component.path / DRAWN)
    restamped(component)
    refused(finished, component, "holds no samples", CorruptError)


def test_what_is_no_component(finished, tmp_path):
    with pytest.raises(RunError, match="is no component"):
        checking.check(tmp_path, finished)
    with pytest.raises(RunError, match="not 'component'"):
        checking.check(finished.expert(0).path, finished)


def test_signatures_are_looked_at(finished, component, tmp_path):
    from atoll.components import making
    from atoll.credit import signature

    with pytest.raises(CorruptError, match="is not signed"):
        checking.check(component.path, finished, "ab" * 32)
    _write_key(tmp_path / "key.pem")
    _write_key(tmp_path / "other.pem")
    making._sign(component, tmp_path / "key.pem")
    assert checking.check(component.path, finished)
    assert checking.check(component.path, finished, signature.public_key(tmp_path / "key.pem"))
    with pytest.raises(CorruptError, match="signed with another key"):
        checking.check(component.path, finished, signature.public_key(tmp_path / "other.pem"))
    restamped(component, name="another")
    with pytest.raises(CorruptError, match="signs something else"):
        checking.check(component.path, finished)
    envelope = json.loads((component.path / SIGNATURE).read_text())
    envelope["document"]["name"] = "another"
    write_json(component.path / SIGNATURE, envelope)
    with pytest.raises(CorruptError, match="not what was signed"):
        checking.check(component.path, finished)
    (component.path / SIGNATURE).write_text("[]")
    with pytest.raises(CorruptError, match="no signature"):
        checking.check(component.path, finished)
