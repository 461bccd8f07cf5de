"""Where files come from: in the order in which they were built on each other, whatever was decided when."""

from atoll.net import history, lineage
from atoll.net.rules import Known
from tests.net.past import honest


def test_decisions_may_come_in_another_order_than_the_work():
    past = honest(2)
    places = [index for index, one in enumerate(past.said) if one[0] == "decision"]
    first, second = (past.said[place] for place in places)
    past.said[places[0]], past.said[places[1]] = second, first
    past.change("result", 1, removed=["experts/00/state/step-00000010.safetensors"])
    known = Known(history.read(past.publish()))
    assert [result.submission for _, result in lineage.ordered(known)] == ["s0", "s1"]
    assert "experts/00/state/step-00000010.safetensors" not in lineage.files(known)
    assert "experts/00/state/step-00000020.safetensors" in lineage.files(known)
    assert [file.path for file in lineage.beginning(known.history)] == ["data/part-0"]
    assert list(lineage.lineage(known)) == []
