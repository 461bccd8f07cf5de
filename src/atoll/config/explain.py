"""What is wrong with a recipe, in words."""

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from atoll.config.patterns import IN_WORDS, NAMED


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """All that is wrong, in one line; misspelt keys first, since what is missing may be one of them."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    return "; ".join(_explain(problem, model) for problem in problems)


def _explain(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Say one validation problem as a person would."""
    where = ".".join(str(part) for part in problem["loc"])
    kind = problem["type"]
    if kind == "extra_forbidden":
        near = _nearest(where, model)
        return f"unknown key '{where}'" + (f", did you mean '{near}'?" if near else "; see docs/reference.md")
    if kind == "missing":
        return f"'{where}' is missing"
    setting = f"'{where}' = {reprlib.repr(problem['input'])}"  # short, however much was given
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{setting}: this is a section, set one of its keys"
    if kind in ("tuple_type", "list_type"):
        return f"{setting}: give a list, such as [{problem['input']!r}]"
    if kind == "string_pattern_mismatch" and problem["ctx"]["pattern"] in IN_WORDS:
        pattern = problem["ctx"]["pattern"]
        return f"{setting}: {did_you_mean(problem['input'], NAMED.get(pattern, ()))}{IN_WORDS[pattern]}"
    if kind == "literal_error":
        return (
            f"{setting}: {did_you_mean(problem['input'], _choices(problem))}use {problem['ctx']['expected']}"
        )
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return message
    if isinstance(problem["input"], Mapping | BaseModel):  # the message names the keys; a section is long
        return f"[{where}] {message}"
    return f"{setting}: {message[0].lower()}{message[1:]}"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The known name that is most like this one, as the beginning of advice; nothing if none is."""
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'? " if near else ""


def _choices(problem: Mapping[str, Any]) -> list[str]:
    """The names among which one may choose."""
    return re.findall(r"'([^']*)'", problem["ctx"]["expected"])


def _nearest(key: str, model: type[BaseModel]) -> str | None:
    """The known key of the same section that is most like this one."""
    section, _, leaf = key.rpartition(".")
    beside = [name.rpartition(".")[2] for name in known_keys(model) if name.rpartition(".")[0] == section]
    match = difflib.get_close_matches(leaf, beside, n=1, cutoff=0.6)
    return f"{section}.{match[0]}".lstrip(".") if match else None


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a recipe, dotted."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = section_of(field.annotation)
        if section is not None:
            keys += known_keys(section, f"{prefix}{name}.")
    return keys


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also where it may be left out."""
    for kind in get_args(annotation) if isinstance(annotation, UnionType) else (annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
