"""A run that forgot is the run that never knew, bit for bit."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from atoll import config
from atoll.components import adding, forgetting
from atoll.config import EvaluateConfig
from atoll.data import encode, partition
from atoll.data import forgetting as resting
from atoll.data.parts import Parts
from atoll.data.samples import Sample
from atoll.errors import ConfigError, DataError
from atoll.evaluate.measure import Judge
from atoll.runs import Run, graph, survey
from atoll.sampling import opening
from atoll.train import jobs
from tests.beforehand import TINY
from tests.components.conftest import own_pictures

SETTINGS = [
    "expert.steps=4",
    "expert.batch=8",
    "expert.precision='float32'",
    "expert.compile='off'",
    "router.steps=3",
    "router.precision='float32'",
    "router.compile='off'",
]
"""Named arithmetic: nothing is left to what a machine picks."""


def pictures():
    random = np.random.default_rng(5)
    return np.concatenate([own_pictures(count=60), random.integers(100, 255, (60, 28, 28), dtype=np.uint8)])


def trained(tmp_path, name, values, *overrides, labels=None):
    path = tmp_path / f"{name}.npz"
    np.savez(path, images=values, **({} if labels is None else {"labels": labels}))
    (tmp_path / "recipe.toml").write_text(TINY)
    changes = [*SETTINGS, f"data.source='{path}'", f"name='{name}'", *overrides]
    run = Run.create(config.load(tmp_path / "recipe.toml", changes))
    encode.prepare(run)
    for node in graph.made(run):
        if forgetting._is_needed(node):
            node.make()
    return run


def listed(tmp_path, values):
    path = tmp_path / "ids.txt"
    path.write_text("\n".join(Sample("x", one[None]).id.hex() for one in values))
    return path


def networks(run):
    """The bytes of all that samples are drawn with."""
    stages = [*(run.expert(k) for k in range(run.config.partition.clusters)), run.router]
    return [(stage.path / "weights.safetensors").read_bytes() for stage in stages]


def of_cluster(run, k, count):
    """Some pictures of one cluster."""
    parts = Parts(run.data)
    ids = {
        raw
        for name in parts.names
        for raw, cluster in zip(
            *(partition.read_assignment(run.partition, name)[key].to_pylist() for key in ("id", "cluster")),
            strict=True,
        )
        if cluster == k
    }
    return np.stack([one for one in pictures() if Sample("x", one[None]).id in ids][:count])


def without(values, gone):
    ids = {Sample("x", one[None]).id for one in gone}
    return np.stack([one for one in values if Sample("x", one[None]).id not in ids])


def test_forgetting_is_never_having_known(tmp_path):
    run = trained(tmp_path, "known", pictures(), "data.holdout=0.1")
    shutil.copytree(run.path, tmp_path / "before")
    gone, before = of_cluster(run, 1, 3), networks(run)
    certificate = forgetting.forget(run, listed(tmp_path, gone))
    never = trained(
        tmp_path,
        "never",
        without(pictures(), gone),
        "data.holdout=0.1",
        f"partition.like='{tmp_path / 'before'}'",
    )
    after = networks(run)
    assert after == networks(never)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, False]
    assert [run.cluster(k).digest for k in range(3)] == [never.cluster(k).digest for k in range(3)]
    for key in ("sizes", "priors", "rows", "holdout", "digests"):
        assert getattr(run.partition.contents, key) == getattr(never.partition.contents, key), key
    assert survey.survey(run).stale == []
    _is_told(run, certificate, gone, before, after)


def _is_told(run, certificate, gone, before, after):
    """The certificate says what happened, and nothing of the samples but hashes of hashes."""
    assert [one["stage"] for one in certificate["made_again"]] == ["router", "expert 1"]
    assert certificate["exact"]
    assert certificate["not_explained"] == []
    assert set(certificate["clusters"]) == {"1"}
    assert {"expert 0", "expert 2", "cluster 0", "cluster 2"} == set(certificate["unchanged"])
    changed = certificate["changed"]["expert 1"]
    digests = [hashlib.sha256(weights).hexdigest() for weights in (before[1], after[1])]
    assert [changed[when]["weights.safetensors"] for when in ("before", "after")] == digests
    written = json.loads((run.path / "forgotten" / "certificate-0000.json").read_text())
    assert written["remains"] == certificate["remains"]
    everything = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    for one in gone:
        assert one.tobytes() not in everything
        assert Sample("x", one[None]).id not in everything
        assert Sample("x", one[None]).id.hex().encode() not in everything


def test_all_that_was_made_from_it_goes_and_the_rest_can_be_sampled(tmp_path):
    run = trained(tmp_path, "known", pictures())
    for name in ("evaluation", "credit", "samples-2"):
        (run.path / name).mkdir()
    run.report.path.mkdir()
    judge = Judge(run, EvaluateConfig(features=("pixels",)))
    judge.ready()
    assert any(judge.folder.glob("reference-*"))
    certificate = forgetting.forget(run, listed(tmp_path, of_cluster(run, 0, 2)))
    assert {"evaluation", "credit", "samples-2", judge.folder.name} <= set(certificate["removed"])
    assert not (run.path / "samples-2").exists()
    assert not judge.folder.exists()
    assert not run.report.path.exists()
    assert opening.open_run_model(run).sample(2).shape == (2, 1, 28, 28)
    names = Parts(run.data)
    assert sum(names.rows_of.values()) == 118
    with pytest.raises(DataError, match="no sample of this run"):
        forgetting.forget(run, listed(tmp_path, own_pictures(seed=77, count=2)))
    with pytest.raises(ConfigError, match="names no samples"):
        forgetting.forget(run, listed(tmp_path, []))


def test_a_router_that_was_never_trained_is_not_trained_to_forget(tmp_path):
    run = trained(tmp_path, "known", pictures())
    run.router.clear()
    certificate = forgetting.forget(run, listed(tmp_path, of_cluster(run, 0, 2)))
    assert [one["stage"] for one in certificate["made_again"]] == ["expert 0"]
    assert not run.router.done
    assert opening.open_run_model(run).sample(2, strategy="ancestral").shape == (2, 1, 28, 28)


def test_whoever_is_stopped_goes_on_where_they_were(tmp_path, monkeypatch):
    run = trained(tmp_path, "known", pictures())
    shutil.copytree(run.path, tmp_path / "other")
    gone = of_cluster(run, 2, 2)
    listed(tmp_path, gone)
    whole = forgetting.forget(Run.open(tmp_path / "other"), tmp_path / "ids.txt")

    def stopped(*arguments, **named):
        raise KeyboardInterrupt

    for target, name in ((resting, "_rewrite_partition"), (jobs, "trained")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stopped)
            with pytest.raises(KeyboardInterrupt):
                forgetting.forget(run, tmp_path / "ids.txt")
    again = forgetting.forget(run, None)
    assert networks(run) == networks(Run.open(tmp_path / "other"))
    assert again["changed"] == whole["changed"]


@pytest.mark.thorough
def test_where_clusters_are_what_the_start_sees_all_is_made_again_and_found_anew(tmp_path):
    settings = ("start.steps=2", "encode.features='start'", "expert.depth=2")
    run = trained(tmp_path, "known", pictures(), *settings)
    gone = pictures()[:2]
    listed(tmp_path, gone)
    for start in ("ask", "keep"):
        with pytest.raises(ConfigError, match="nothing of this run can stay; --start retrain"):
            forgetting.forget(run, tmp_path / "ids.txt", start)
    certificate = forgetting.forget(run, tmp_path / "ids.txt", "retrain")
    never = trained(tmp_path, "never", pictures()[2:], *settings)
    assert networks(run) == networks(never)
    assert [run.cluster(k).digest for k in range(3)] == [never.cluster(k).digest for k in range(3)]
    assert certificate["exact"]
    assert certificate["not_explained"] == []
    assert not [line for line in certificate["remains"] if line.startswith("the partition")]
    assert survey.survey(run).stale == []


@pytest.mark.thorough
def test_where_the_start_saw_it_one_must_say_what_to_do(tmp_path):
    run = trained(tmp_path, "known", pictures(), "start.steps=2")
    gone = of_cluster(run, 1, 2)
    listed(tmp_path, gone)
    with pytest.raises(ConfigError, match="--start retrain .* --start keep .* public data"):
        forgetting.forget(run, tmp_path / "ids.txt")
    shutil.copytree(run.path, tmp_path / "kept")
    kept = forgetting.forget(Run.open(tmp_path / "kept"), tmp_path / "ids.txt", "keep")
    assert [one["stage"] for one in kept["made_again"]] == ["router", "expert 1"]
    assert not kept["exact"]
    assert any("the common start" in line for line in kept["remains"])
    shutil.copytree(run.path, tmp_path / "before")
    whole = forgetting.forget(run, tmp_path / "ids.txt", "retrain")
    assert [one["stage"] for one in whole["made_again"]] == [
        "start",
        "router",
        "expert 0",
        "expert 1",
        "expert 2",
    ]
    never = trained(
        tmp_path,
        "never",
        without(pictures(), gone),
        "start.steps=2",
        f"partition.like='{tmp_path / 'before'}'",
    )
    assert networks(run) == networks(never)


def test_samples_are_named_by_id_by_name_or_by_themselves(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    values = pictures()[:40]
    for number, one in enumerate(values):
        Image.fromarray(one).save(folder / f"p{number:02d}.png")
    (tmp_path / "recipe.toml").write_text(TINY)
    run = Run.create(config.load(tmp_path / "recipe.toml", [f"data.source='{folder}'", "partition.fine=6"]))
    encode.prepare(run)
    partition.partition(run)
    wanted = {Sample("x", values[3][None]).id}
    (tmp_path / "names.txt").write_text("p03.png\n")
    (tmp_path / "table.csv").write_text("name,why\np03.png,asked\n")
    listed(tmp_path, values[3:4])
    (tmp_path / "one").mkdir()
    shutil.copy(folder / "p03.png", tmp_path / "one" / "other-name.png")
    np.savez(tmp_path / "one.npz", images=values[3:4])
    for given in ("names.txt", "table.csv", "ids.txt", "one", "one/other-name.png"):
        ids, names = resting.wanted(tmp_path / given, run.config.data)
        assert set(resting.find(run, ids, names)) == wanted, given
    with pytest.raises(DataError, match="nowhere.png is no sample of this run; nothing was forgotten"):
        resting.find(run, [], ["nowhere.png"])
    with pytest.raises(DataError, match="is not there"):
        resting.wanted(tmp_path / "none.txt", run.config.data)


def test_a_whole_cluster_is_dropped_rather_than_forgotten(tmp_path):
    run = trained(tmp_path, "known", pictures())
    listed(tmp_path, of_cluster(run, 1, 1000))
    before = {path: path.read_bytes() for path in run.path.rglob("*.parquet")}
    with pytest.raises(ConfigError, match="all samples of cluster 1; leave it out with `atoll drop"):
        forgetting.forget(run, tmp_path / "ids.txt")
    assert {path: path.read_bytes() for path in run.path.rglob("*.parquet")} == before
    with pytest.raises(ConfigError, match="say what to forget"):
        forgetting.forget(run, None)


def test_router_rows_of_what_was_forgotten_go_too(tmp_path, component):
    run = trained(tmp_path, "known", pictures())
    adding.add(run, component.path)
    before = {path.name: path.read_bytes() for path in (run.path / "components").glob("known-*")}
    forgetting.forget(run, listed(tmp_path, of_cluster(run, 0, 2)))
    after = {path.name: path.read_bytes() for path in (run.path / "components").glob("known-*")}
    assert len(after) == 3
    assert len(before.keys() & after.keys()) == 2
    assert opening.open_run_model(run).sample(2, strategy="full").shape == (2, 1, 28, 28)
