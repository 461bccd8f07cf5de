"""Results as they come in."""

import json

import pytest

from atoll.net import results
from atoll.net.leasing import LeaseError
from atoll.net.protocol import File, Micro, Numerics, Result
from tests.net.crowds import Machine, PretendedPlan, coordinator, result_of, sha, state


def test_what_two_machines_have_in_common_is_not_the_time_they_took():
    unit = PretendedPlan().ready({})[0]
    result, _ = result_of(unit)
    other = result.model_copy(update={"seconds": 7.0, "numerics": Numerics(threads=4)})
    assert results.content_of(result) == results.content_of(other) and result.digest != other.digest
    false, _ = result_of(unit, false=True)
    assert results.content_of(result) != results.content_of(false)


def test_a_state_on_the_way_comes_with_every_hash_so_far():
    """Else whoever goes on from it would be blamed for the gap."""
    unit = PretendedPlan().ready({})[0]
    hashes = tuple(sha(state(unit.stage, step)) for step in (0, 10, 20))
    files = (File(path="expert/0/step-20", sha256=hashes[-1], size=1),)
    results.check_links(unit, Micro(step=20, files=files, chain=hashes))
    results.check_links(unit, Micro(step=15, files=files, chain=hashes[:2]))
    for step, chain in (
        (20, ()),
        (20, hashes[:2]),
        (20, (*hashes[:2], "0" * 64)),
        (15, hashes),
        (10, ("ab", "cd")),
    ):
        with pytest.raises(LeaseError, match="hashes of states"):
            results.check_links(unit, Micro(step=step, files=files, chain=chain))


def test_lists_that_are_too_long_for_the_log_are_files(database, tmp_path, monkeypatch):
    here = coordinator(database, tmp_path)
    monkeypatch.setattr(results, "LONG", 2)
    machine = Machine.of(here)
    offer = machine.lease()
    assert machine.submit(offer).status_code == 200
    facts = next(facts for kind, facts in here.book.notes if kind == "result")
    chain = json.loads(here.artifacts.read(facts["chain"]))
    assert chain == list(result_of(offer.unit)[0].chain)
    assert isinstance(facts["outputs"], list)
    assert Result.model_validate(result_of(offer.unit)[0].model_dump()).digest
