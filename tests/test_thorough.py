"""What is left out when not everything is asked for: only what repeats itself."""

import itertools
from types import SimpleNamespace

import pytest

from tests import thorough


@pytest.mark.parametrize("number", [1, 2, 5, 6, 19, 40])
def test_some_are_spread_from_the_first_to_the_last(number):
    kept = thorough.some(range(number), 5, thorough=False)
    assert len(kept) == len(set(kept)) == min(number, 5) and kept == sorted(kept)
    assert kept[0] == 0 and kept[-1] == number - 1
    gaps = {after - before for before, after in itertools.pairwise(kept)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_of_one_case_it_is_the_first_and_all_if_asked():
    assert thorough.some("abc", 1, thorough=False) == ["a"]
    assert thorough.some("abc", 1, thorough=True) == ["a", "b", "c"]


@pytest.mark.parametrize(("sizes", "number", "expected"), [((7, 3), 1, 7), ((2, 3, 3, 2, 2), 12, 12)])
def test_every_value_of_every_parameter_is_met(sizes, number, expected):
    values = itertools.product(*map(range, sizes))
    cases = [{f"axis {axis}": str(value) for axis, value in enumerate(case)} for case in values]
    chosen = [cases[index] for index in thorough.covering(cases, number)]
    assert len(chosen) == expected and chosen[0] == cases[0]
    for axis, size in enumerate(sizes):
        met = [case[f"axis {axis}"] for case in chosen]
        assert set(met) == {str(value) for value in range(size)}
        assert max(map(met.count, met)) - min(map(met.count, met)) <= 1, "none of them far more often"


def item(name, file="tests/test_it.py", each=0, dear=(), **params):
    marker = SimpleNamespace(args=(each,)) if each else None
    found = SimpleNamespace(nodeid=f"{file}::{name}", get_closest_marker=lambda name: marker)
    found.iter_markers = lambda name: [SimpleNamespace(kwargs=values) for values in dear]
    if params:
        found.nodeid += f"[{'-'.join(map(str, params.values()))}]"
        found.callspec = SimpleNamespace(params=params)
    return found


def ids(items):
    return [one.nodeid.rpartition("::")[2] for one in items]


def test_each_promise_is_held_once_by_everybody_in_turn():
    kinds = ("sqlite", "postgresql")
    points = [item("killed", database_url=kind, point=point) for kind in kinds for point in range(3)]
    items = [item("alone"), *points, *(item("other", database_url=kind) for kind in kinds)]
    assert ids(thorough.kept(items, thorough=False)) == [
        "alone",
        "killed[sqlite-0]",
        "killed[sqlite-2]",
        "killed[postgresql-1]",
        "other[postgresql]",
    ]
    assert thorough.kept(items, thorough=True) == items


def test_of_what_is_marked_each_value_is_kept_and_of_others_each_case():
    marked = [item("marked", each=1, a=a, b=b) for a in range(3) for b in range(2)]
    plain = [item("plain", a=a, b=b) for a in range(3) for b in range(2)]
    kept = thorough.kept(marked + plain, thorough=False)
    assert ids(kept) == ["marked[0-0]", "marked[1-1]", "marked[2-0]", *ids(plain)]
    assert thorough.kept(marked, thorough=True) == marked


def test_what_is_asked_for_by_name_is_not_left_out():
    asked = [item("killed", database_url="postgresql", point=0), item("other", database_url="postgresql")]
    asked.append(item("marked", each=1, a=2, b=1))
    assert thorough.kept(asked, thorough=False) == asked


def test_what_is_dear_is_left_to_ci_unless_asked_for():
    items = [item("cheap"), item("dear", dear=[{}]), item("cheap too")]
    assert ids(thorough.kept(items, thorough=False)) == ["cheap", "cheap too"]
    assert thorough.kept(items, thorough=False, named=True) == items
    assert thorough.kept(items, thorough=True) == items


@pytest.mark.parametrize(("values", "left"), [("b", ["a", "c"]), (("a", "c"), ["b"])])
def test_some_cases_of_a_test_may_be_dear(values, left):
    items = [item("one", dear=[{"engine": values}], engine=engine) for engine in "abc"]
    assert ids(thorough.kept(items, thorough=False)) == [f"one[{engine}]" for engine in left]


def test_what_only_has_such_a_name_is_no_repetition():
    bytes_of_it = [item("changed", place=place) for place in range(5)]
    assert thorough.kept(bytes_of_it, thorough=False) == bytes_of_it


def test_what_goes_together_is_no_repetition():
    pairs = [item("fits", width=width, heads=heads) for width, heads in ((384, 6), (768, 12))]
    assert thorough.kept(pairs, thorough=False) == pairs


def test_a_contract_is_kept_by_everybody():
    stores = [item("held", "tests/contracts/test_it.py", machine=machine) for machine in ("folder", "s3")]
    assert thorough.kept(stores, thorough=False) == stores


def test_what_is_drawn_anew_is_tried_more_often_if_asked():
    assert (thorough.often(10, 5, thorough=False), thorough.often(10, 5, thorough=True)) == (5, 10)
