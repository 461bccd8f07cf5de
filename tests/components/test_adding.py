"""A component is wholly there or not at all; nothing else of a run is touched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import atoll
from atoll.cli import components  # noqa: F401 - it adds its commands to the app
from atoll.cli.options import app
from atoll.components import adding, calibrating
from atoll.errors import ConfigError, DataError
from atoll.runs.components import MEMBERS, read_members
from atoll.sampling import opening
from atoll.storage.mirror import Mirror
from tests.components.conftest import own_pictures


def digests(run):
    """Every byte of a run but for what was added to it."""
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for folder in run.path.iterdir()
        if folder.name not in ("components", "events.jsonl") and not folder.name.startswith(".")
        for path in ([folder] if folder.is_file() else sorted(folder.rglob("*")))
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_component_serves_at_once_and_nothing_else_is_touched(finished, component):
    before, alone = digests(finished), atoll.load(finished.path)
    member = adding.add(finished, component.path)
    assert member.number == 3
    assert digests(finished) == before
    sampler = opening.open_run_model(finished)
    assert len(sampler.ensemble.experts) == 4
    rows = finished.partition.contents.rows
    assert sampler.ensemble.priors.tolist()[3] == pytest.approx(96 / (rows + 96))
    x_t = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    t = torch.linspace(0.05, 1, 8)
    posterior, own = sampler.posterior(x_t, t), alone.posterior(x_t, t)
    assert torch.allclose(posterior.sum(1), torch.ones(8), atol=1e-6)
    among = posterior[:, :3] / posterior[:, :3].sum(1, keepdim=True)
    assert torch.allclose(among, own, atol=1e-5)  # among the known nothing has moved
    drawn = sampler.trace(12, strategy="oracle", cluster=[3] * 12)
    assert drawn.x_0.shape == (12, 1, 28, 28)
    for strategy in ("full", "top-1", "ancestral", "auto"):
        assert bool(sampler.sample(4, strategy=strategy).isfinite().all())


def test_squares_are_sent_to_who_knows_squares(finished, component):
    """Pictures that neither side has seen."""
    adding.add(finished, component.path)
    sampler = opening.open_run_model(finished)
    squares = torch.from_numpy(own_pictures(seed=9, count=16)).float()[:, None] / 127.5 - 1
    own = calibrating.judged(finished, 0).x_0[:16]
    noise = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    t = torch.full((16,), 0.3)
    shares = [float(sampler.posterior(0.7 * x + 0.3 * noise, t)[:, 3].mean()) for x in (squares, own)]
    assert shares[0] > 5 * shares[1]


def test_at_noise_the_posterior_is_the_share_of_samples(finished, component):
    """What routing in closed form must say at t = 1, where x_t says nothing."""
    adding.add(finished, component.path)
    sampler = opening.open_run_model(finished)
    x = torch.randn(512, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    share = float(sampler.posterior(x, torch.ones(512))[:, 3].mean())
    beta, prior = finished.members.betas[-1], float(sampler.ensemble.priors[3])
    tempered = prior**beta / (prior**beta + (1 - prior) ** beta)
    assert share == pytest.approx(tempered, rel=1e-3)


def test_dropping_masks_and_leaves_nothing_of_what_was_added(finished, component):
    plain = atoll.load(finished.path).sample(6, strategy="full", steps=2)
    adding.add(finished, component.path)
    weights = finished.component(3).path
    adding.drop(finished, 3)
    assert not weights.exists()
    assert json.loads((finished.path / MEMBERS).read_text())["dropped"] == [3]
    again = atoll.load(finished.path).sample(6, strategy="full", steps=2)
    assert torch.allclose(plain, again, atol=1e-5)
    with pytest.raises(ConfigError, match="no part 3"):
        adding.drop(finished, 3)
    with pytest.raises(ConfigError, match="does not serve here"):
        atoll.load(finished.path).sample(2, experts=(3,))
    assert adding.add(finished, component.path).number == 4  # no number is given twice
    assert len(opening.open_run_model(finished).ensemble.experts) == 5


def test_an_own_expert_that_is_dropped_is_masked_exactly(finished):
    full = atoll.load(finished.path)
    adding.drop(finished, 1)
    left = atoll.load(finished.path)
    asked = full.sample(4, strategy="full", experts=(0, 2), steps=3)
    assert torch.equal(left.sample(4, strategy="full", steps=3), asked)
    assert finished.expert(1).done  # its files stay where they are
    with pytest.raises(ConfigError, match="no part 1 here"):
        opening.open_run_model(finished, experts=(1,))
    adding.drop(finished, 0)
    with pytest.raises(ConfigError, match="the only one"):
        adding.drop(finished, 2)


@pytest.mark.parametrize("where", ["copyfile", "inverse_temperatures", "write_members"])
@pytest.mark.thorough(where=("copyfile", "inverse_temperatures"))
def test_whoever_is_stopped_on_the_way_has_added_nothing(finished, component, monkeypatch, where):
    target = shutil if where == "copyfile" else calibrating if where.startswith("inv") else adding
    real = getattr(target, where)

    def stopped(*arguments):
        if where == "copyfile":
            real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, where, stopped)
    with pytest.raises(KeyboardInterrupt):
        adding.add(finished, component.path)
    assert not finished.component(3).path.exists()
    assert read_members(finished.path).added == ()
    monkeypatch.setattr(target, where, real)
    assert adding.add(finished, component.path).number == 3


def test_a_component_needs_no_data_of_the_run(finished, component, tmp_path):
    """An exported run has no samples: its experts draw what rows are made of."""
    from atoll.publish import export

    export.export(finished, str(tmp_path / "out"))
    run = opening.open_run(tmp_path / "out")
    adding.add(run, component.path)
    assert bool(atoll.load(tmp_path / "out").sample(3, strategy="full").isfinite().all())


def test_an_exported_run_takes_its_parts_along_and_says_whose_they_are(finished, component, tmp_path):
    from atoll.publish import export

    adding.add(finished, component.path)
    adding.drop(finished, 1)
    export.export(finished, str(tmp_path / "out"))
    here, there = (atoll.load(path).sample(3, strategy="full") for path in (finished.path, tmp_path / "out"))
    assert torch.equal(here, there)
    text = (tmp_path / "out" / "README.md").read_text()
    (line,) = (
        line for line in text.splitlines() if line.startswith("| 3 | squares | alice | cc-by | squares |")
    )
    assert line.endswith(f"| {finished.members.present[0].mark} |") and "not replayed" in line
    assert not (tmp_path / "out" / "ensemble" / "experts" / "01").exists()


@pytest.mark.thorough
def test_a_part_that_was_added_is_valued_like_the_others(finished, component, tmp_path):
    """At home on samples of its own that somebody brings; one that was dropped is gone from everything."""
    from atoll.evaluate import credit, settlement, values
    from atoll.pages import credit as page

    adding.add(finished, component.path)
    adding.drop(finished, 1)
    run = finished.changed(["credit.num=96", "credit.bins=4"])
    alone = credit.value(run)
    assert [part["number"] for part in alone["parts"]] == [0, 2, 3]
    added = alone["parts"][2]
    assert (added["part"], added["samples"], added["at_home"]) == ("squares (3)", 96, 0)
    assert added["audited"]["value"] == 0.0
    assert "squares (3) is at home on none of these samples" in values.table(alone)
    np.savez(tmp_path / "unseen.npz", images=own_pictures(seed=5))
    record = credit.value(run, brought={3: str(tmp_path / "unseen.npz")})
    parts = {part["number"]: part for part in record["parts"]}
    assert parts[3]["at_home"] > 0 and parts[3]["audited"]["value"] != 0.0
    assert sum(part["value"]["value"] for part in parts.values()) == pytest.approx(
        record["loss"]["gain"]["value"], rel=1e-6
    )
    assert sum(part["routed"]["value"] for part in parts.values()) == pytest.approx(1.0)
    assert {row["group"] for row in record["clusters"]} == {"0", "1", "2", "3"}
    text = page.write_credit(run, record).read_text(encoding="utf-8")
    assert "squares (3)" in text and "not replayed" in text
    assert "squares (3): not replayed" in values.table(record)
    price = settlement.royalties(run, [[0.25, 0.0, 0.25, 0.5]])
    assert price is not None and len(price) == 4 and price[1] == 0.0
    with pytest.raises(ConfigError, match="no part 1 was added"):
        credit.value(run, brought={1: str(tmp_path / "unseen.npz")})
    np.savez(tmp_path / "small.npz", images=own_pictures()[:, :8, :8])
    with pytest.raises(DataError, match="holds no samples"):
        credit.value(run, brought={3: str(tmp_path / "small.npz")})


def test_a_sample_is_traced_to_a_part_that_was_added(finished, component):
    """The data of a stranger's part are elsewhere: it has a likelihood and no nearest samples."""
    from atoll.evaluate import credit
    from atoll.pages import report

    adding.add(finished, component.path)
    adding.drop(finished, 1)
    x_0 = atoll.load(finished.path).sample(1, strategy="oracle", cluster=[3], steps=2)
    run = finished.changed(["credit.levels=4"])
    (traced,) = credit.trace(run, x_0)
    assert len(traced["posterior"]) == len(traced["nearest"]) == 4
    assert traced["posterior"][1] == 0.0
    assert traced["nearest"][3] == []
    text = credit.table({**traced, "royalties": None, "claims": {}})
    assert "gone" in text
    facts = dict(report._added(finished))
    assert facts["part 3, added"].startswith("squares, of alice (cc-by), 96 samples")
    assert facts["part 3, added"].endswith(finished.members.present[0].mark)
    assert facts["parts that serve no longer"] == "1"


def test_what_is_added_to_a_run_in_a_store_others_have(finished, component, tmp_path, monkeypatch):
    """By the commands, on two machines that share nothing but the store."""
    address = tmp_path / "mounted" / "tiny"
    address.parent.mkdir()
    mirror = Mirror(finished, str(address), 30)
    mirror.open(lead=True)
    for stage in (finished.partition, *(finished.expert(k) for k in range(3)), finished.router):
        mirror.upload(stage)

    def machine(name, *words):
        monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / name))
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert machine("one", "add", str(address), str(component.path))["number"] == 3
    assert not finished.members.added, "only where it was said"
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "two"))
    there = opening.open_model(address)
    assert len(there.ensemble.experts) == 4
    assert bool(there.sample(2, strategy="full").isfinite().all())
    assert machine("two", "refresh", str(address), "--samples", "4")["knows"] == [0, 1, 2, 3]
    routers = [path.parent for path in address.rglob("router-*/done.json")]
    assert len(routers) == 1
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "one"))
    assert opening.open_run(address).members.router is not None
    assert bool(opening.open_model(address).sample(2, strategy="full").isfinite().all())
    assert machine("two", "drop", str(address), "3")["serving"] == [0, 1, 2]
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "one"))
    assert opening.open_run(address).members.present == ()
    assert not list(address.rglob("router-*/done.json")), "it had learnt from what the part drew"


def test_a_run_on_the_hub_is_not_changed_in_the_cache():
    with (
        pytest.raises(ConfigError, match="cannot be changed from here"),
        opening.changing(Path("hub:o/name")),
    ):
        pass
