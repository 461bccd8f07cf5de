"""The benchmark of what follows a result: a run that is half done, and all of its units."""

from atoll.runs import graph
from benchmarks import units


def test_half_of_the_experts_are_left():
    run, table = units.half_done(4)
    assert len(graph.nodes(run)) > 8
    took, files, found = units.seconds(4, repeats=1)
    assert files == len(table) and found == 3, "two experts and the router"
    assert took >= 0


def test_the_answer_is_a_ratio():
    answer = units.measure(units.SMALL)
    assert list(answer) == ["benchmark", "ratios", "detail"] and all(answer["ratios"].values())
    assert [row["experts"] for row in answer["detail"]["runs"]] == [2, 4]
