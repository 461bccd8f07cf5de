"""A learnt router takes in parts that were added, from samples that they draw."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from atoll.cli import components  # noqa: F401 - it adds its commands to the app
from atoll.cli.options import app
from atoll.components import adding, calibrating, refreshing
from atoll.data.store import Reader
from atoll.errors import ConfigError, RunError
from atoll.flow import objectives
from atoll.models import checkpoint
from atoll.publish.export import export
from atoll.runs import Run
from atoll.runs.components import Member
from atoll.sampling import grown, opening
from tests.components.test_adding import digests
from tests.conftest import linked


@pytest.fixture(scope="module")
def _grown_once(_tiny_finished, made_once, tmp_path_factory):
    """The tiny run with a part more, which nobody may write to."""
    run = linked(_tiny_finished, tmp_path_factory.mktemp("grown") / "finished")
    adding.add(run, made_once / "squares")
    return run.path


@pytest.fixture
def grown_run(_grown_once, tmp_path):
    """Such a run of one's own."""
    shutil.copytree(_grown_once, tmp_path / "runs" / "finished", symlinks=True)
    return Run.open(tmp_path / "runs" / "finished")


def test_it_knows_the_part_and_nothing_else_is_touched(grown_run):
    before, part = digests(grown_run), grown_run.component(3).digest
    done = CliRunner().invoke(app, ["refresh", str(grown_run.path), "--samples", "24", "--json"])
    told = json.loads(done.stdout)
    assert told["knows"] == [0, 1, 2, 3]
    assert digests(grown_run) == before
    assert grown_run.component(3).digest == part
    folder = grown_run.path / "components"
    assert [path.name for path in folder.glob("router-*")] == [told["folder"]]
    assert not list(folder.glob("drawn-*"))  # what was drawn for it has served
    sampler = opening.open_run_model(grown_run)
    x_t, t = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.full((6,), 0.6)
    alone, _ = checkpoint.load(
        grown_run.asked_router.path / checkpoint.WEIGHTS,
        grown_run.asked_router.path / checkpoint.CONFIG,
        torch.device("cpu"),
    )
    with torch.inference_mode():
        torch.testing.assert_close(sampler.posterior(x_t, t), alone(x_t, t, None).softmax(1))
    for strategy in ("full", "top-1", "auto"):
        assert bool(sampler.sample(3, strategy=strategy, steps=2).isfinite().all())


def test_what_a_part_draws_is_sent_to_it(grown_run):
    """Learnt from some samples of the part, tried on others."""
    settings = {"steps": 150, "batch": 16, "lr": 1e-2, "ema": 0.9, "precision": "float32"}
    router = grown_run.config.router.model_copy(update=settings)
    run = Run(grown_run.path, grown_run.config.model_copy(update={"router": router}))
    others, own = calibrating.drawn_by(run, 3, 16, seed=5).x_0, Reader([run.cluster(0)], 1, 0).first(16).x_0
    refreshing.refresh(run, 64)
    sampler = opening.open_run_model(run)
    noise = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    t = torch.full((16,), 0.3)
    shares = [float(sampler.posterior(0.7 * x + 0.3 * noise, t)[:, 3].mean()) for x in (others, own)]
    assert shares[0] > 5 * shares[1]


def test_it_is_made_once_and_prototypes_know_who_comes_after_it(grown_run):
    first = refreshing.refresh(grown_run, 8)
    assert refreshing.refresh(grown_run, 8) == first
    later = Member(number=4, name="later", digest="0" * 64)
    members = grown_run.members.model_copy(update={"added": (*grown_run.members.added, later)})
    assert grown.owners(grown_run, members, learnt=True) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1}
    assert grown.owners(grown_run, members, learnt=False) == {k: k for k in range(5)}


def test_a_part_that_goes_takes_what_was_learnt_of_it_along(finished, component):
    x_t, t = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(3)), torch.full((4,), 0.5)
    own = opening.open_run_model(finished).posterior(x_t, t)
    adding.add(finished, component.path)
    grown_run = finished
    before, betas = opening.open_run_model(grown_run).posterior(x_t, t), grown_run.members.betas
    refreshing.refresh(grown_run, 8)
    assert not torch.allclose(opening.open_run_model(grown_run).posterior(x_t, t), before, atol=1e-4)
    undone = refreshing.undone(grown_run, grown_run.members)
    assert (undone.router, undone.betas) == (None, betas)
    adding.drop(grown_run, 3)
    assert grown_run.members.router is None
    assert not list((grown_run.path / "components").glob("router-*"))
    torch.testing.assert_close(opening.open_run_model(grown_run).posterior(x_t, t), own)


def test_nobody_is_asked_who_is_not_the_one(grown_run):
    refreshed = refreshing.refresh(grown_run, 8)
    shutil.rmtree(grown_run.refreshed(refreshed.folder).path)
    with pytest.raises(RunError, match="`atoll refresh` makes it again"):
        opening.open_run_model(grown_run)
    assert refreshing.refresh(grown_run, 8) == refreshed


def test_where_nothing_was_added_there_is_nothing_to_learn(finished):
    with pytest.raises(ConfigError, match="nothing was added"):
        refreshing.refresh(finished)
    with pytest.raises(ConfigError, match="at least one sample"):
        refreshing.refresh(finished, 0)


def test_an_export_has_it(grown_run, tmp_path):
    refreshing.refresh(grown_run, 8)
    export(grown_run, str(tmp_path / "out"))
    x_t, t = torch.randn(4, 1, 28, 28), torch.full((4,), 0.5)
    torch.testing.assert_close(
        opening.open_model(tmp_path / "out").posterior(x_t, t),
        opening.open_run_model(grown_run).posterior(x_t, t),
    )


def test_what_is_read_more_often_than_there_is_of_it_counts_for_less():
    """Two clusters that look the same, read evenly, of which there are nine to one."""
    shares = torch.tensor([0.9, 0.1], dtype=torch.float64)
    offset = objectives.oversampling(torch.tensor([50.0, 50.0], dtype=torch.float64), shares)
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=50)

    def closure():
        optimiser.zero_grad()
        cluster = torch.tensor([0, 1])
        loss = objectives.router_loss((logits + offset).expand(2, 2), cluster).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(logits.detach().softmax(0), shares, atol=1e-6, rtol=0)
