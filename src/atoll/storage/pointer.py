"""Where an unfinished stage stands in a store: a pointer of each holder of its lease; the last one counts."""

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from atoll.runs.parsing import validated
from atoll.runs.records import Count, FileName, Frozen, Sha256
from atoll.storage.store import Store


class State(Frozen):
    """A state of training in a store."""

    step: Count
    file: FileName
    """Its name in the folder of states here."""
    sha256: Sha256
    name: FileName
    """Its name in the store."""


class Pointer(Frozen):
    """Where a stage stands, as one holder of its lease left it."""

    attempt: FileName
    token: Count
    started: dict[str, JsonValue] | None = None
    """What the attempt is made from, as in `started.json`."""
    states: tuple[State, ...] = ()
    """States of training, the newest first."""
    decisions: dict[str, JsonValue] | None = None
    metrics: FileName | None = None
    """The name of the metrics in the store."""

    def encoded(self) -> bytes:
        """The pointer as it is written to a store."""
        return self.model_dump_json().encode()

    def changed(self, **values: Any) -> "Pointer":
        """The same with other values."""
        return self.model_copy(update=values)


def pointer_name(stage: str, token: int) -> str:
    """Where the pointer of one holder is in a store."""
    return f"{stage}/progress/{token:08d}.json"


def pointers(store: Store, stage: str) -> Iterator[Pointer]:
    """The pointers of a stage's current attempt, that of the highest token first."""
    attempt = None
    for name in reversed(store.names(f"{stage}/progress")):
        tree = store.read_json(name)
        if tree is None:
            continue
        pointer = validated(Pointer, tree, f"{store.address}/{name}")
        if attempt in (None, pointer.attempt):
            attempt = pointer.attempt
            yield pointer


def newest(store: Store, stage: str) -> Pointer | None:
    """The pointer that counts."""
    return next(pointers(store, stage), None)
