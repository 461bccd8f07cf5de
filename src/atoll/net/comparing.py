"""What a coordinator, which opens no tensors, finds out by processes of its own: likeness, canaries."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from pydantic import ValidationError

from atoll.errors import AtollError
from atoll.net.artifacts import Artifacts
from atoll.net.protocol import File, Result, Unit
from atoll.net.tables import SubmissionRow
from atoll.net.verification import asking
from atoll.net.verification.asking import COMMITTED
from atoll.net.verification.comparison import Report
from atoll.runs import DONE, file_digest

LONGEST = 1 << 20
"""Bytes of an auditor's report."""
SECONDS = 600.0
"""For how long one of these processes may run."""
REMEMBERED = 4096
"""Pairs of files whose likeness is kept in mind."""
Run = Callable[[str, Sequence[str]], bool]


def in_a_process(module: str, arguments: Sequence[str]) -> bool:
    """Whether a module of ours, run with these arguments, ends well."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclass(frozen=True)
class Tools:
    """Processes that open what strangers have sent."""

    run: Run = in_a_process
    known: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """What two files were found to be: whoever waits for a third opinion asks again every few seconds."""

    def alike(self, artifacts: Artifacts, handed: Sequence[SubmissionRow]) -> frozenset[frozenset[str]]:
        """Pairs of results that say the same within rounding; those of the same bytes need not be asked."""
        pairs = [(one, other) for one, other in combinations(handed, 2) if one.content != other.content]
        return frozenset(
            frozenset((one.id, other.id)) for one, other in pairs if self._near(artifacts, one, other)
        )

    def _near(self, artifacts: Artifacts, one: SubmissionRow, other: SubmissionRow) -> bool:
        left, right = (_files(row) for row in (one, other))
        if left.keys() != right.keys() or not all(_fits(artifacts, files) for files in (left, right)):
            return False
        for path, file in left.items():
            if file.sha256 != right[path].sha256 and not self._remembered(artifacts, file, right[path]):
                return False
        return True

    def _remembered(self, artifacts: Artifacts, one: File, other: File) -> bool:
        """Bytes that were compared once need not be opened again."""
        key = (Path(one.path).name, one.sha256, other.sha256)
        if key not in self.known:
            while len(self.known) >= REMEMBERED:
                del self.known[next(iter(self.known))]
            self.known[key] = self._same(artifacts, one, other)
        return self.known[key]

    def _same(self, artifacts: Artifacts, one: File, other: File) -> bool:
        """By its name a file says what it is, so that it is opened under its name."""
        with tempfile.TemporaryDirectory(prefix="atoll-compare-") as folder:
            places = []
            for side, file in (("a", one), ("b", other)):
                place = Path(folder) / side / Path(file.path).name
                place.parent.mkdir()
                place.symlink_to(artifacts.path(file.sha256).resolve())
                places.append(str(place))
            return self.run("atoll.net.verification.tolerance", places)

    def spoilt(self, artifacts: Artifacts, question: Unit) -> File | None:
        """The committed state of an audit with an update that is partly noise; None if it cannot be made."""
        end = f"/state/{asking.state_name(question.first)}"
        before = next((file for file in question.inputs if f"/{file.path}".endswith(end)), None)
        after = next(file for file in question.inputs if file.path == COMMITTED)
        if before is None:
            return None
        seed = str(int(question.digest[:8], 16))
        with tempfile.TemporaryDirectory(prefix="atoll-canary-") as folder:
            path = Path(folder) / "state.safetensors"
            places = [str(artifacts.path(file.sha256)) for file in (before, after)]
            if not self.run("atoll.net.verification.spoil", [*places, str(path), seed]) or not path.is_file():
                return None
            digest = file_digest(path)
            size = path.stat().st_size
            artifacts.add(path, digest)
        return File(path=COMMITTED, sha256=digest, size=size)


def report(artifacts: Artifacts, result: Result) -> Report | None:
    """What an auditor says; None where it is no report."""
    file = next((one for one in result.outputs if one.path == asking.REPORT), None)
    try:
        return None if file is None else Report.model_validate_json(artifacts.read(file.sha256, LONGEST))
    except (AtollError, ValidationError, OSError):
        return None


def _fits(artifacts: Artifacts, files: Mapping[str, File]) -> bool:
    """Whether records have the digests of the files that came with them: others are not compared."""
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        if name != DONE:
            continue
        try:
            listed = json.loads(artifacts.read(file.sha256, LONGEST))["files"]
            there = {name: files[f"{folder}/{name}"].sha256 for name in listed if f"{folder}/{name}" in files}
            if any(listed[name] != sha256 for name, sha256 in there.items()):
                return False
        except (AtollError, ValueError, TypeError, KeyError, OSError):
            return False
    return True


def _files(row: SubmissionRow) -> dict[str, File]:
    """Files but those that tell of time."""
    outputs = Result.model_validate(row.result).outputs
    return {file.path: file for file in outputs if not file.path.endswith(".jsonl")}
