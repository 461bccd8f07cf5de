"""Files that are whole or not there: JSON, lines of JSON, digests."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.errors import CorruptError, RunError
from atoll.runs import repair

LONGEST = 200
"""Characters of a file's name in a record, with its folders."""


def safe_name(name: object) -> str:
    """A file's name in a record, as it is: relative, with `/` between folders, nothing hidden, no way out.

    Records come from stores and strangers, and what they name is written to and read from by that name.
    """
    if not isinstance(name, str) or not name:
        raise CorruptError(
            f"a record names a file {name!r:.60}; a file has a name, such as weights.safetensors"
        )
    if len(name) > LONGEST or not name.isprintable() or any(character in name for character in '\\:*?"<>|'):
        raise CorruptError(f"a record names a file {name!r:.60}, which is no portable name; do not trust it")
    if any(part.startswith(".") or not part or part != part.strip() for part in name.split("/")):
        raise CorruptError(
            f"a record names a file {name!r:.60}, which is hidden or elsewhere; do not trust it"
        )
    return name


def digest(value: Any) -> str:
    """A hash of any JSON value that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_list(values: Iterable[Any]) -> str:
    """The `digest` of a list of these values, which need not be in memory together."""
    state, before = hashlib.sha256(), "["
    for value in values:
        state.update(f"{before}{json.dumps(value, sort_keys=True)}".encode())
        before = ", "
    state.update(b"[]" if before == "[" else b"]")
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; on success it replaces `path`, on failure nothing changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # At random as well: in two containers on one mount, processes may have the same number.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; run the stage that writes it, or `atoll run`, first") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptError(f"{path} is damaged; {repair.advice(path.parent)}") from None


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON object as one line, in one write, so that others may read along."""
    line = json.dumps(value, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that is only half written is left out."""
    lines: list[dict[str, Any]] = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
    return lines
