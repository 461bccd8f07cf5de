"""Digests of settings: over what differs from the defaults, so that a new key makes no old run stale."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

DEFAULTS = 1
"""Version of the defaults. It rises when one of them gets another value, since a recipe that leaves its key
out then asks for something else; a new key leaves it as it is, and so does a default beside which stands what
it was (`Formerly`)."""


@dataclass(frozen=True)
class Mark:
    """What a field is to digests, written beside its type."""

    reason: str


@dataclass(frozen=True)
class Formerly:
    """The default that a field once had, written beside its type: digests go on leaving out this one.

    A finished run of before has the digest that it always had, and a recipe that leaves the key out asks for
    something else than it did, which shows.
    """

    default: Any


OPERATIONAL = Mark("how work is done on a machine, not what comes of it: it may change between two calls")
ELSEWHERE = Mark("what it names is digested by itself, as the files of a folder")


def settings_digest(section: BaseModel, fields: Collection[str] | None = None) -> str:
    """A hash of what a section asks for, or some fields of it, whoever does it and however."""
    settings = {key: value for key, value in differing(section).items() if fields is None or key in fields}
    text = json.dumps({"defaults": DEFAULTS, "settings": settings}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differing(section: BaseModel) -> dict[str, Any]:
    """The settings of a section that differ from their defaults, as plain values; without marked ones."""
    plain = section.model_dump(mode="json")
    tree: dict[str, Any] = dict(section.model_extra or {})
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if not is_marked(field) and value != left_out(field):
            tree[name] = differing(value) if isinstance(value, BaseModel) else plain[name]
    return tree


def left_out(field: FieldInfo) -> Any:
    """The value of a field that is no part of digests: its default, or the one that it first had."""
    former = [each.default for each in field.metadata if isinstance(each, Formerly)]
    return former[0] if former else field.get_default(call_default_factory=True)


def is_marked(field: FieldInfo) -> bool:
    """Whether a field is left out of digests."""
    return any(isinstance(each, Mark) for each in field.metadata)


def operational(section: type[BaseModel]) -> frozenset[str]:
    """The keys that say how work is done on a machine."""
    return frozenset(name for name, field in section.model_fields.items() if OPERATIONAL in field.metadata)


def defaults(section: type[BaseModel]) -> Mapping[str, Any]:
    """What digests leave out of every key of a section that counts; null where a key must be given."""
    return {
        name: None if field.is_required() else _plain(left_out(field))
        for name, field in section.model_fields.items()
        if not is_marked(field)
    }


def _plain(value: Any) -> Any:
    return defaults(type(value)) if isinstance(value, BaseModel) else json.loads(json.dumps(value))
