"""JSON values parsed at the door: their version, then their types, with what is wrong in one line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from atoll.errors import CorruptError, RunError
from atoll.runs.files import read_json

VERSION: Literal[1] = 1
"""Of all records; it rises when an older program would misread what a newer one writes."""

REMEDY = "make its stage anew with --start-over"
"""For a record that is damaged, here or in a store: nobody is told to delete what others may have made."""


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], value: object, where: str, remedy: str = REMEDY) -> Model:
    """A JSON value as a model: its types as they are, nothing converted; CorruptError in words otherwise."""
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        problem = f"'{place}': {message}" if place else message
    except CorruptError as error:  # a file's name
        raise CorruptError(f"{where}: {error}") from None
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0]
    raise CorruptError(f"{where} is damaged ({problem[:200]}); {remedy}")


def versioned(value: object, where: str) -> Mapping[str, Any]:
    """The tree of a record that this program can read."""
    if not isinstance(value, Mapping):
        raise CorruptError(f"{where} is damaged (not an object); {REMEDY}")
    version = value.get("version")
    if isinstance(version, int) and version > VERSION:
        raise RunError(
            f"{where} was written by a newer Atoll (records of version {version}, this one reads {VERSION}); "
            "upgrade atoll"
        )
    if version != VERSION or isinstance(version, bool):
        raise CorruptError(f"{where} has no version that is known here ({version!r:.40}); {REMEDY}")
    return value


def stamped(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree that is to be written beside records, with the version of what it means."""
    return {"version": VERSION, **tree}


def unstamped(value: object, where: str) -> dict[str, Any]:
    """The tree that was stamped, without its version; one that has none is from before there were any."""
    first = {"version": VERSION, **value} if isinstance(value, Mapping) else value
    return {key: part for key, part in versioned(first, where).items() if key != "version"}


def read_stamped(path: Path) -> dict[str, Any]:
    """The tree of a file that was written with a version."""
    return unstamped(read_json(path), str(path))
