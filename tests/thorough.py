"""How much of what repeats itself is tried: a spread of it by `make test`, all of it by CI.

Some tests hold one promise against many generated cases, or on everything that could serve them. Every
promise is held either way: on the first and the last case and some between (`some`), on every value of every
parameter (`@pytest.mark.each(number)`), on all that may serve in turn (`IN_TURN`).

What is dear and holds a promise that a cheaper test holds as well, on another engine, by whole processes or
with more of everything, is marked `@pytest.mark.thorough`, with values of a parameter if only those of its
cases are meant (`@pytest.mark.thorough(name="slurm")`): it is left to CI, and to who asks for it by its name.
"""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

THOROUGH = os.environ.get("ATOLL_THOROUGH", "0") == "1"
IN_TURN: dict[str, tuple[Any, ...]] = {
    "database_url": ("sqlite", "postgresql"),
    "width": (390, 1280),
    "scheme": ("dark", "light"),
    **dict.fromkeys(("place", "machine", "worker"), ("folder", "s3")),
}
"""Parameters whose values serve a test alike: databases, windows of a browser, a folder or a store."""
CONTRACTS = "tests/contracts/"
"""What everybody has to keep is asked of everybody."""

T = TypeVar("T")


def some(cases: Iterable[T], most: int, thorough: bool = THOROUGH) -> list[T]:
    """At most so many cases, evenly spread from the first to the last; all of them if thorough."""
    every = list(cases)
    if thorough or len(every) <= most:
        return every
    if most == 1:
        return every[:1]
    return [every[round(turn * (len(every) - 1) / (most - 1))] for turn in range(most)]


def often(thoroughly: int, otherwise: int, thorough: bool = THOROUGH) -> int:
    """How many times something is tried that is drawn anew each time."""
    return thoroughly if thorough else otherwise


def kept(items: list[Any], thorough: bool = THOROUGH, named: bool = False) -> list[Any]:
    """Tests without what only repeats others. Who asks for a case by its name gets it."""
    if thorough:
        return items
    wanted = [item for item in items if named or not _is_dear(item)]
    left = {item.nodeid for item in _each(_in_turn(wanted))}
    return [item for item in items if item.nodeid in left]


def covering(cases: list[dict[str, str]], number: int) -> list[int]:
    """Which cases to take: so many, more if that does not give each value of each parameter, the first first.

    Always one that has most new values, and of those one whose values were taken least often.
    """
    taken: Counter[tuple[str, str]] = Counter()
    missing = {pair for case in cases for pair in case.items()}
    chosen: list[int] = []
    while len(chosen) < len(cases) and (missing or len(chosen) < number):
        left = [index for index in range(len(cases)) if index not in chosen]
        best = max(left, key=lambda index: _worth(cases[index], missing, taken))
        chosen.append(best)
        taken.update(cases[best].items())
        missing -= set(cases[best].items())
    return sorted(chosen)


def _worth(case: dict[str, str], missing: set[tuple[str, str]], taken: Counter[tuple[str, str]]) -> Any:
    return len(missing & set(case.items())), -sum(taken[pair] for pair in case.items())


def _is_dear(item: Any) -> bool:
    """Whether it is marked, or a case of it that has one of the values that the mark names."""
    params = _params(item)
    return any(
        all(
            params.get(name) in (values if isinstance(values, tuple) else (values,)) for name, values in named
        )
        for named in (mark.kwargs.items() for mark in item.iter_markers("thorough"))
    )


def _each(items: list[Any]) -> list[Any]:
    """Tests, and of those that are marked so as many cases as give each value of each parameter."""
    marked: dict[str, list[Any]] = {}
    for item in items:
        if _params(item) and item.get_closest_marker("each"):
            marked.setdefault(item.nodeid.partition("[")[0], []).append(item)
    dropped = set()
    for group in marked.values():
        cases = [{name: repr(value) for name, value in _params(item).items()} for item in group]
        chosen = covering(cases, group[0].get_closest_marker("each").args[0])
        dropped |= {item.nodeid for number, item in enumerate(group) if number not in chosen}
    return [item for item in items if item.nodeid not in dropped]


def _in_turn(items: list[Any]) -> list[Any]:
    """Of tests that differ only by who serves them a file has the first, then the second, and so on."""
    alike: dict[Any, list[Any]] = {}
    for item in items:
        alike.setdefault(_whoever_serves(item), []).append(item)
    turns: Counter[str] = Counter()
    left = []
    for group in alike.values():
        file = group[0].nodeid.partition("::")[0]
        left.append(group[turns[file] % len(group)])
        turns[file] += len(group) > 1
    return left


def _whoever_serves(item: Any) -> Any:
    """What a test is but for that."""
    params = _params(item)
    others = {name: value for name, value in params.items() if value not in IN_TURN.get(name, ())}
    if item.nodeid.startswith(CONTRACTS) or len(others) == len(params):
        return item.nodeid
    return (item.nodeid.partition("[")[0], *(f"{name}={value!r}" for name, value in others.items()))


def _params(item: Any) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}
