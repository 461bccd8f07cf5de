"""What leaves the owner's machine, and what does not."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from atoll import config
from atoll.components import making
from atoll.config import RunConfig
from atoll.credit import signature
from atoll.data.parts import Parts, features_path
from atoll.data.samples import Sample
from atoll.errors import ConfigError, DataError
from atoll.runs import Run, Stage
from atoll.runs.components import DRAWN, ROWS, SIGNATURE, ComponentContents
from atoll.sampling import grown
from tests.components.conftest import own_pictures


def test_a_component_says_whose_it_is_and_what_it_needs(component, finished):
    contents = component.contents
    assert (contents.card.owner, contents.card.licence, contents.card.tags) == (
        "alice",
        "cc-by",
        ("squares",),
    )
    assert (contents.rows, contents.name, contents.base) == (96, "squares", None)
    assert sorted(path.name for path in component.path.iterdir()) == [
        "config.json",
        "done.json",
        ROWS,
        DRAWN,
        "weights.safetensors",
    ]
    rows = grown.read_rows(component.path / ROWS, 784, 0)
    assert len(rows.means) == contents.prototypes <= 3
    assert float(rows.sizes.sum()) == 96
    assert float(rows.sizes.min()) >= 16


def test_nothing_of_any_single_sample_is_in_the_folder(component, made_once):
    """Neither its bytes at rest, nor as networks see it, nor its id, name or features, in any precision."""
    held = {path.name: path.read_bytes() for path in component.path.iterdir()}
    everything = b"".join(held.values())
    run = Run.open(made_once / "runs" / "mine-component")
    parts = Parts(run.data)
    features = [np.load(run.data.path / features_path(Path(name)).name) for name in parts.names]
    pictures = own_pictures()
    for picture in pictures:
        sample = Sample("x", picture[None])
        assert sample.id not in everything
        assert sample.id.hex().encode() not in everything
        assert hashlib.sha256(picture.tobytes()).hexdigest().encode() not in everything
        for dtype in (np.uint8, np.float16, np.float32, np.float64):
            seen = picture.astype(dtype) if dtype is np.uint8 else (picture / 127.5 - 1).astype(dtype)
            assert seen[12:14].tobytes() not in everything
    for row in np.concatenate(features):
        assert row[:16].tobytes() not in everything
        assert row[:16].astype(np.float32).tobytes() not in everything
    assert b"mine.npz" not in everything
    assert str(made_once).encode() not in everything
    assert run.cluster(0).digest.encode() not in everything
    values = torch.from_numpy(pictures).float().view(len(pictures), -1) / 127.5 - 1
    kept = [load_file(component.path / ROWS)["means"], load_file(component.path / DRAWN)["x_0"].flatten(1)]
    for rows in kept:
        assert float(torch.cdist(rows, values).min()) > 1.0  # no mean or draw is a sample, or near one


def test_the_search_for_samples_finds_one_that_is_there(component):
    """The test above would notice: a prototype of copies of one sample is the sample."""
    tensors = load_file(component.path / ROWS)
    values = torch.from_numpy(own_pictures()).float().view(96, -1) / 127.5 - 1
    assert float(torch.cdist(torch.cat([tensors["means"], values[:1]]), values).min()) == pytest.approx(
        0, abs=1e-3
    )


def test_a_signature_is_over_all_files(made_once, finished, tmp_path):
    key = tmp_path / "key.pem"
    _write_key(key)
    run = Run.open(made_once / "runs" / "mine-component")
    stage = making.make(run, finished, tmp_path / "signed", key)
    document = signature.verified(
        json.loads((stage.path / SIGNATURE).read_text()), signature.public_key(key), "it"
    )
    assert document == {"component": stage.digest, "name": "signed", "base": None}


def _write_key(path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, plain))


def test_what_cannot_be_is_refused_before_anything_is_trained(finished, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    run = Run(tmp_path / "private", making.private_config(finished.config, finished, str(tmp_path)))
    with pytest.raises(ConfigError, match="give another folder"):
        making.make(run, finished, tmp_path / "full")
    with pytest.raises(ConfigError, match="no key"):
        making.make(run, finished, tmp_path / "out", tmp_path / "no.pem")
    assert not run.path.exists()


@pytest.mark.parametrize(("size", "match"), [((96, 20, 20), "data.size"), ((96, 28, 28, 3), "data.size")])
def test_samples_of_another_shape_are_refused(finished, tmp_path, size, match):
    np.savez(tmp_path / "mine.npz", images=np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8))
    settings = making.private_config(finished.config, finished, str(tmp_path / "mine.npz"))
    with pytest.raises(DataError, match=match):
        making.make(Run.create(settings), finished, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_private_run_has_the_bases_network_and_condition(finished):
    changed = finished.config.model_dump(mode="json")
    changed["expert"] |= {"width": 64, "steps": 7}
    changed["condition"] = {"kind": "class"}
    changed["student"] = {"steps": 3}
    private = making.private_config(RunConfig.model_validate(changed), finished, None)
    assert (private.expert.width, private.expert.steps, private.condition.kind) == (16, 7, "none")
    assert (private.partition.clusters, private.start, private.student) == (1, None, None)
    assert private.name == "tiny-component"


def test_classes_are_the_bases_by_name(prepared, tmp_path):
    """A class of the component's own data gets the number that the base gives its name."""
    base = prepared()
    about = base.partition.contents
    names = about.class_names
    np.savez(tmp_path / "mine.npz", images=own_pictures(), labels=np.array([names[7], names[2]] * 48))
    settings = making.private_config(base.config, _with_blueprint(base, tmp_path), str(tmp_path / "mine.npz"))
    run = Run.create(settings)
    from atoll.data import encode, partition

    making.conform(encode.prepare(run), about)
    partition.partition(run)
    assert run.cluster(0).contents.class_names == names
    from atoll.data.store import Reader

    labels = Reader([run.cluster(0)], 1, 0).first().label
    assert sorted(set(labels.tolist())) == [2, 7]
    np.savez(tmp_path / "other.npz", images=own_pictures(1), labels=np.array(["unicorn", names[2]] * 48))
    other = Run.create(
        config.validate(
            {
                **settings.model_dump(mode="json"),
                "name": "other",
                "data": {"source": str(tmp_path / "other.npz")},
            },
            "a test",
        )
    )
    with pytest.raises(DataError, match="'unicorn' that the base does not know"):
        making.conform(encode.prepare(other), about)
    making.conform(other.data, about, classes=False)  # nobody is told: a new class may come
    assert "unicorn" in other.data.contents.class_names


def _with_blueprint(base, tmp_path):
    """The base with a network beside it, untrained."""
    from tests import serving

    serving.network(base.expert(0), "none", "expert", seed=0, shape=(1, 28, 28))
    return base


def test_a_component_is_a_record_that_others_can_read(component):
    assert isinstance(Stage(component.path).record.contents, ComponentContents)


def test_an_adapter_is_a_component_as_well(prepared, tmp_path):
    """On the common start of a run: the folder holds the adapter alone, and the run's own base serves it."""
    from atoll.components import adding
    from atoll.sampling import opening
    from atoll.train import jobs

    base = prepared("start.steps=2", "expert.steps=2", "router.steps=2", "expert.precision='float32'")
    jobs.start(base)
    for k in range(3):
        jobs.expert(base, k)
    jobs.router(base)
    np.savez(tmp_path / "mine.npz", images=own_pictures())
    adapted = {"expert": {**base.config.expert.model_dump(mode="json"), "adapter": {"rank": 2}}}
    recipe = config.validate(
        {**base.config.model_dump(mode="json"), **adapted, "component": {"samples": 8}}, "it"
    )
    run = Run.create(making.private_config(recipe, base, str(tmp_path / "mine.npz")))
    stage = making.make(run, base, tmp_path / "adapter")
    assert stage.contents.base == base.start.record.files["weights.safetensors"]
    whole = (base.start.path / "weights.safetensors").stat().st_size
    assert (stage.path / "weights.safetensors").stat().st_size < whole
    assert adding.add(base, stage.path).number == 3
    assert opening.open_run_model(base).sample(2, strategy="full").shape == (2, 1, 28, 28)
    tree = json.loads((stage.path / "config.json").read_text())
    tree["adapter"]["rank"] = 5
    (stage.path / "config.json").write_text(json.dumps(tree))
    record = json.loads((stage.path / "done.json").read_text())
    digest = hashlib.sha256((stage.path / "config.json").read_bytes()).hexdigest()
    record["files"]["config.json"] = digest
    (stage.path / "done.json").write_text(json.dumps(record))
    adding.drop(base, 3)
    with pytest.raises(Exception, match="does not fit its blueprint"):
        adding.add(base, stage.path)
    assert not base.component(4).path.exists()
