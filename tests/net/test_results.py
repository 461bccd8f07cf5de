"""Results as they come in."""

import json

from atoll.net import results
from atoll.net.protocol import Numerics, Result
from tests.net.crowds import Machine, PretendedPlan, coordinator, result_of


def test_what_two_machines_have_in_common_is_not_the_time_they_took():
    unit = PretendedPlan().ready({})[0]
    result, _ = result_of(unit)
    other = result.model_copy(update={"seconds": 7.0, "numerics": Numerics(threads=4)})
    assert results.content_of(result) == results.content_of(other) and result.digest != other.digest
    false, _ = result_of(unit, false=True)
    assert results.content_of(result) != results.content_of(false)


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
