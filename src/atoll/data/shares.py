"""Encoding and assigning cut into shares for several machines; the stage then finds them done."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from atoll.data import encode, excerpt, partition, parts, rules, sources
from atoll.data.samples import Source
from atoll.runs import Run, inputs


class Pieces:
    """Pieces of the source, each to be encoded; models stay loaded from one to the next."""

    def __init__(self, run: Run, *, partial: bool = False) -> None:
        """`partial`: of what comes from outside there is only what one share needs."""
        self.run, self._partial = run, partial

    def missing(self) -> Sequence[int]:
        """Open the stage; the pieces of which nothing is there yet."""
        if not encode.begin(self.run, self._source):
            return []
        first = [self.run.data.path / encode.part_name(piece, 0) for piece in range(self._source.pieces)]
        return [piece for piece, path in enumerate(first) if not path.is_file()]

    def needed(self, share: Any) -> Callable[[str], bool]:
        """Which files of what the stage reads a share needs."""
        return lambda name: False

    def progress(self, share: Any) -> Callable[[str], bool]:
        """Which files of the unfinished stage a share needs."""
        return lambda name: False

    def make(self, share: int) -> None:
        """Encode the samples of a piece."""
        self.run.data.path.mkdir(parents=True, exist_ok=True)
        source = excerpt.Excerpt(self._source) if self._partial else self._source
        encode.write_piece(source, share, self.run.config.data.part, self._encoder, self.run.data)

    def outside(self, share: int) -> Sequence[Path] | None:
        """Which files from outside a share needs; None for all."""
        return excerpt.needed(self._source, share, self.run.config.data)

    @cached_property
    def _source(self) -> Source:
        return sources.open_source(self.run.config.data)

    @cached_property
    def _encoder(self) -> encode.Encoder:
        return encode.Encoder(self.run.config.encode, self._source.kind, self._source.span)


class Assignments:
    """Parts of the data, each to be assigned to clusters by one rule."""

    def __init__(self, run: Run, *, partial: bool = False) -> None:
        """Nothing comes from outside: `partial` makes no difference."""
        self.run = run

    def missing(self) -> Sequence[str]:
        """Open the stage and fit the rule; the parts that are not assigned yet."""
        stage, config = self.run.partition, self.run.config.partition
        if not stage.begin(inputs.partition_from(self.run)) or config.method == "file":
            return []  # a file is read more quickly than it is sent
        known = self._parts
        names = [partition.assignment_name(name) for name in known.names]
        missing = [
            name for name, file in zip(known.names, names, strict=True) if not (stage.path / file).is_file()
        ]
        if len(missing) > 1:
            partition.make_rule(known, config, self.run.config.seed, stage.path).save(stage.path)
        return missing

    def needed(self, share: str) -> Callable[[str], bool]:
        """Which files of the data a share needs."""
        rows = Path(share)
        return {share, parts.features_path(rows).name, parts.dropped_path(rows).name}.__contains__

    def progress(self, share: str) -> Callable[[str], bool]:
        """The rule, and no assignments of others."""
        return lambda name: not name.startswith("assignment-")

    def make(self, share: str) -> None:
        """Assign the samples of a part."""
        partition.assign_part(self._parts, share, self._rule, self.run.partition.path)

    def outside(self, share: str) -> Sequence[Path] | None:
        """Nothing comes from outside."""
        return []

    @property
    def _parts(self) -> parts.Parts:
        return parts.Parts.of(self.run)

    @cached_property
    def _rule(self) -> rules.Rule:
        return rules.read_rule(self.run.partition.path)
