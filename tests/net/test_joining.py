"""From an address to work: wrong addresses, a coordinator that is not the one it was, two in one folder."""

import json
import time

import pytest

from atoll.errors import ConfigError, CorruptError, RunError
from atoll.net import callers, joining, keys
from atoll.net.client import Refused
from atoll.net.home import Home
from tests.net.joined import Quiet, lent, served, work_on


def test_an_address_with_another_key_than_before_is_refused(run_of_units, recorded, tmp_path):
    with served(run_of_units) as (_, url):
        work_on(lent(url, tmp_path, start=recorded), once=True)
        known = json.loads((tmp_path / "known.json").read_text())
        (tmp_path / "known.json").write_text(json.dumps({url: "00" * 32}))
        with pytest.raises(CorruptError, match="has another key than before"):
            work_on(lent(url, tmp_path, start=recorded), once=True)
        assert len(known) == 1


@pytest.mark.thorough
def test_a_finished_run_makes_room_for_another_at_its_address(run_of_units, recorded, tmp_path):
    """Runs have keys of their own: whoever served one may serve the next there."""
    with served(run_of_units) as (_, url):
        assert work_on(lent(url, tmp_path, start=recorded))["ended"] == "finished"
    assert json.loads((tmp_path / "known.json").read_text()) == {}


def test_the_address_of_a_page_is_no_address_of_a_run(run_of_units, recorded, tmp_path):
    with served(run_of_units) as (_, url), pytest.raises(ConfigError, match="is not the address of a run"):
        work_on(lent(f"{url}/queue", tmp_path, start=recorded))


def test_two_processes_do_not_share_a_folder_for_one_run(run_of_units, recorded, tmp_path):
    """Each would go on with what the other holds, in the same files."""
    with served(run_of_units) as (_, url):
        with (
            joining.at_work(lent(url, tmp_path, start=recorded)),
            pytest.raises(RunError, match="being worked for by another process.*--home of its own"),
        ):
            work_on(lent(url, tmp_path, start=recorded), once=True)
        assert work_on(lent(url, tmp_path, start=recorded), once=True)["submitted"] == 1


def test_what_is_held_of_another_run_stays(run_of_units, recorded, tmp_path):
    """One coordinator knows nothing of another's leases, and would say to drop them."""
    with served(run_of_units) as (_, url), joining.at_work(lent(url, tmp_path, start=recorded)) as worker:
        held = worker._lease()
        unit = held.offer.unit.model_copy(update={"run": "1" * 64})
        other = held.offer.model_copy(update={"lease": "other", "unit": unit})
        worker.machine.home.hold(other, {})
        assert [one.offer.lease for one in worker.reconcile()] == [held.offer.lease]
        assert {one.offer.lease for one in worker.machine.home.leases()} == {held.offer.lease, "other"}


def test_what_will_be_downloaded_is_told_before(run_of_units, recorded, tmp_path):
    """Samples of a cluster and 16 bytes for each parameter of the largest network."""
    tell = Quiet()
    with served(run_of_units) as (hosted, url):
        work_on(lent(url, tmp_path, tell=tell, start=recorded), once=True)
        manifest = json.loads(hosted.manifest.manifest)
    weights = max(path.stat().st_size for path in recorded.run.path.glob("*/**/weights.safetensors"))
    assert manifest["download"] > 4 * weights * 0.9, "a state is four times its weights"
    assert any("MB for one training, kept while there is room" in line for line in tell.lines)


def words_of(tell):
    return next(line for line in tell.lines if len(line.split()) == 24)


def test_a_recovery_phrase_takes_the_account_along(run_of_units, recorded, tmp_path):
    """Also to a machine that has worked for an account of its own before."""
    first, second, again = Quiet(), Quiet(), Quiet()
    with served(run_of_units) as (_, url):
        work_on(lent(url, tmp_path / "first", tell=first, start=recorded), once=True)
        work_on(lent(url, tmp_path / "second", tell=second, start=recorded), once=True)
        phrase = words_of(first)
        for tell in (again, Quiet()):  # the second time it is renewed
            joining = lent(url, tmp_path / "second", tell=tell, start=recorded, phrase=phrase)
            assert work_on(joining, once=True)["accepted"] == 1
    owner, other, taken = (
        next(line for line in tell.lines if "you are" in line) for tell in (first, second, again)
    )
    assert owner == taken != other
    assert phrase not in "".join(again.lines) and words_of(second) != phrase


def test_words_are_shown_though_the_coordinator_refuses(run_of_units, recorded, tmp_path, monkeypatch):
    """They are made once: who has not seen them has lost the account."""
    tell = Quiet()
    with served(run_of_units) as (_, url):
        monkeypatch.setattr(callers, "VERSION", 10**6)
        with pytest.raises(Refused, match="update atoll"):
            work_on(lent(url, tmp_path, tell=tell, start=recorded), once=True)
    assert words_of(tell)


def test_that_a_year_ends_soon_is_told(run_of_units, recorded, tmp_path):
    tell = Quiet()
    with served(run_of_units) as (_, url):
        soon = time.time() - keys.YEAR + 9.6 * 86400
        Home(tmp_path).delegation(soon)
        work_on(lent(url, tmp_path, tell=tell, start=recorded), once=True)
    assert "this machine may act for its account for 10 more days; --recover renews it" in tell.lines


def test_one_is_no_plural():
    facts = {"ended": "once", "submitted": 1, "accepted": 1, "credits": 0.5}
    assert joining.sentence(facts) == "Ended (once): 1 unit handed in, 1 accepted so far, 0.5 credits."
