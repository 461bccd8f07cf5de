"""An epoch paid by a live coordinator: stated once, posted to who made the parts, found right by an audit."""

import dataclasses
import json
import signal

import pytest
from typer.testing import CliRunner

from atoll.cli import credit  # noqa: F401 - it adds its command to the app
from atoll.cli.options import app
from atoll.errors import ConfigError, RunError
from atoll.net import audit, epochs, history, ledger, paying, rules, settling, sources
from atoll.net.audit import Asked
from atoll.net.host import Choices
from atoll.net.paying import Valued
from tests.net.dying import killed
from tests.net.joined import CHOICES, lent, served, work_on
from tests.net.policed import small
from tests.net.test_epochs import valued

POINTS = ["epoch.stated", "epoch.paid"]


def test_makers_in_the_ledger_are_those_of_the_log_and_are_paid_once(tmp_path):
    world = small(tmp_path)
    ann, bob = world.machine(), world.machine()
    world.finish([ann, bob])
    stage = "expert 0"
    with world.database.reading() as session:
        makers = paying.makers(session)
    world.publisher.publish()
    known = rules.Known(history.read(sources.open_source(str(world.here.artifacts.store.address))))
    assert makers == epochs.makers(known, 10**6) and set(makers[stage]) <= {ann.name, bob.name}
    epoch = valued()
    paid = paying.pay(world.here, epoch)
    assert {entry.account for entry in paid[1:]} == set(makers[stage])
    assert paying.pay(world.here, epoch) == paid, "told again"
    assert world.told("epoch") == [epoch.model_dump(mode="json")]
    settling.settle(world.here)
    with world.database.reading() as session:
        assert ledger.reconcile(session).holds
        kept = sum(ledger.balance(session, one, "vested", stage) for one in makers[stage])
    assert kept == sum(makers[stage].values()) + sum(entry.amount for entry in paid[1:])
    with pytest.raises(RunError, match=r"paid by other values; next is --set credit\.epoch=1"):
        paying.pay(world.here, valued(expert_0=(9.0, 1.0)))
    with pytest.raises(RunError, match="epoch 1 was not paid yet"):
        paying.pay(world.here, valued(2))
    world.database.close()


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_pays_it_has_paid_once_or_not_at_all(tmp_path, point):
    world = small(tmp_path)
    world.finish([world.machine(), world.machine()])
    assert killed(lambda: paying.pay(world.here, valued()), point) == -signal.SIGKILL, (
        "the point is on the way"
    )
    assert len(world.told("epoch")) == (point == "epoch.paid")
    paid = paying.pay(world.here, valued())
    assert len(paid) > 1 and sum(entry.amount for entry in paid) == 0
    assert world.told("epoch") == [valued().model_dump(mode="json")]
    settling.settle(world.here)
    with world.database.reading() as session:
        assert ledger.reconcile(session).holds
    world.database.close()


def by_command(run):
    """Epoch 1 measured and paid by `atoll credit --audit --ledger`."""
    settings = ["credit.epoch=1", "credit.bins=2", "credit.budget=0.001"]
    line = ["credit", str(run.path), "--audit", "--ledger", "--json"]
    done = CliRunner().invoke(app, [*line, *(word for one in settings for word in ("--set", one))])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_a_live_coordinator_pays_and_a_stranger_finds_it_right(run_of_units, recorded, tmp_path):
    with served(run_of_units) as (hosted, url):
        work_on(lent(url, tmp_path / "home", start=recorded))
        hosted.lay_out()
        run = hosted.run
        worth = Valued(0, run.config.seed, {0: (3.0, 1.0), 1: (2.0, 0.5)})
        posted = paying.post(run, worth, CHOICES)
        assert len(posted["milli_credits"]) == 1, "one machine did all of it"
        assert sum(posted["milli_credits"].values()) == pytest.approx(1000 * run.config.credit.pool, abs=2)
        assert paying.post(run, worth, CHOICES) == posted
        told = by_command(run)
        assert told["ledger"]["epoch"] == 1 and len(told["ledger"]["milli_credits"]) == 1
        assert by_command(run)["ledger"] == told["ledger"], "the same again changes nothing"
        hosted.keep_books()
        page = audit.audit(
            sources.open_source(str(hosted.coordinator.artifacts.store.address)), Asked(now=1e12)
        )
        assert page.holds, page.text
        with pytest.raises(RunError, match="with seed 12345, and the run has published"):
            paying.post(run, dataclasses.replace(worth, epoch=1, seed=12345), CHOICES)
        (run.parts[1].path / paying.WEIGHTS).write_bytes(b"another")
        with pytest.raises(RunError, match="another network than the run's log knows"):
            paying.post(run, dataclasses.replace(worth, epoch=1), CHOICES)


def test_a_run_that_was_never_hosted_has_no_ledger_and_gets_none(finished):
    with pytest.raises(ConfigError, match="has no ledger"):
        paying.require_ledger(finished, Choices())
    (finished.path / "other.db").write_bytes(b"")
    with pytest.raises(ConfigError, match="has no ledger"):
        paying.require_ledger(finished, Choices(database=str(finished.path / "other.db")))
    assert not (finished.path / "network").exists()
