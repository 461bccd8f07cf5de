"""Segments weighed on the host, by a process, once the beacon has said with which samples.

What is wrong with a segment's numbers refuses it; what is odd about them, or about what it did to held-out
samples, makes sure of a replay by two, and punishes nobody.
"""

import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import filing, sealed
from atoll.net.artifacts import Artifacts
from atoll.net.protocol import File, Result, Unit
from atoll.net.tables import SubmissionRow, TaskRow
from atoll.net.verification import admission, policy
from atoll.net.verification.admission import Findings
from atoll.net.verification.asking import AFTER, state_name
from atoll.net.verification.beacon import Draw
from atoll.runs import DONE, Run, read_json, safe_name, stamped, write_json
from atoll.runs.records import ClusterContents, parse_record

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

WEIGH = "atoll.net.verification.weigh"
SECONDS = 600.0
"""For how long a segment may be weighed."""
OTHERS = 3
"""Clusters beside its own that an expert is tried on."""
ROOM = 1 << 30
"""Bytes of samples that are brought for it."""
REMEMBERED = 256
"""Segments with which another one is compared."""
ALIKE = 1.5
"""How many times longer one segment may be than another with which it is compared."""
Process = Callable[[Path, Sequence[str]], bool]
"""Runs the scales in a folder with these arguments; whether they came to an end."""


@dataclass(frozen=True)
class Weighed:
    """What is known of a segment once the beacon has spoken."""

    drawn: Draw
    facts: Mapping[str, Any] | None = None
    """What the process said; None where nothing was weighed."""
    findings: Findings = field(default_factory=Findings)

    @property
    def evidence(self) -> dict[str, Any]:
        """For the log: numbers that anybody comes to who weighs it again; the sketch is only kept here."""
        known = {name: value for name, value in (self.facts or {}).items() if name != "sketch"}
        return {**known, "round": self.drawn.round, "doubts": dict(self.findings.doubts)}


def in_a_process(place: Path, arguments: Sequence[str]) -> bool:
    """Without key and network; it ends with who started it."""
    with (place / "log").open("wb") as log:
        process = sealed.start(
            WEIGH,
            arguments,
            folder=place,
            hidden=place / "hidden",
            log=log,
            variables={"OMP_NUM_THREADS": "1"},
        )
        try:
            return process.wait(SECONDS) == 0
        except BaseException:
            process.kill()
            process.wait()
            raise


@dataclass(frozen=True)
class Segment:
    """What is put on the scales."""

    unit: Unit
    result: Result
    value: str
    """The beacon's."""
    samples: Callable[[], Sequence[File]]
    """Looked up when its turn has come."""


class Scales:
    """Weighs one segment at a time beside everything else; whoever asks too early asks again."""

    def __init__(self, run: Run, process: Process = in_a_process, *, beside: bool = True) -> None:
        self.run, self._process, self._beside = run, process, beside
        self._known: dict[str, dict[str, Any] | None] = {}
        self._busy = threading.Lock()

    def weigh(self, artifacts: Artifacts, name: str, segment: Segment) -> dict[str, Any] | None:
        """What the process says of a submission by its name; None while it is at work."""
        if name not in self._known and self._busy.acquire(blocking=False):
            work = threading.Thread(target=self._work, args=(artifacts, name, segment), daemon=True)
            work.start()
            if not self._beside:
                work.join()
        return self._known.get(name)

    def _work(self, artifacts: Artifacts, name: str, segment: Segment) -> None:
        try:
            numbers = self._numbers(artifacts, segment)
        except Exception as error:  # whatever it is, nobody is blamed and nobody waits
            numbers = {"why": f"it could not be weighed ({type(error).__name__})"}
        self._known = {**dict(list(self._known.items())[-REMEMBERED:]), name: numbers}
        self._busy.release()

    def _numbers(self, artifacts: Artifacts, segment: Segment) -> dict[str, Any]:
        unit, value = segment.unit, segment.value
        end = f"/state/{state_name(unit.last)}"
        after = next(file for file in segment.result.outputs if f"/{file.path}".endswith(end))
        with tempfile.TemporaryDirectory(prefix="atoll-weigh-", ignore_cleanup_errors=True) as name:
            place, folder = Path(name), Path(name) / "run"
            for file in (*unit.inputs, *segment.samples(), after.model_copy(update={"path": AFTER})):
                target = folder / safe_name(file.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.is_symlink():
                    target.symlink_to(artifacts.path(file.sha256).resolve())
            (place / "unit.json").write_text(unit.model_dump_json(), encoding="utf-8")
            write_json(place / "resolved.json", stamped(self.run.config.model_dump(mode="json")))
            answer = place / "answer.json"
            arguments = [str(place / one) for one in ("unit.json", "resolved.json", "run")]
            if not self._process(place, [*arguments, value, str(answer)]) or not answer.is_file():
                return {"why": f"it could not be weighed ({_last_line(place / 'log')})"}
            numbers: dict[str, Any] = read_json(answer)
            return numbers

    def samples(
        self, table: Mapping[str, File], read: Callable[[File], bytes], unit: Unit, value: str
    ) -> list[File]:
        """Of an expert's own cluster and of some others, drawn by the beacon; held-out ones if any."""
        head, _, number = unit.stage.rpartition(" ")
        if head != "expert" or not number.isdigit():
            return []
        others = [index for index in range(self.run.config.partition.clusters) if index != int(number)]
        others.sort(key=lambda index: policy.fraction(bytes.fromhex(value), "gate", str(index)))
        files: list[File] = []
        for index in (int(number), *others[:OTHERS]):
            more = self._cluster(table, read, index)
            if sum(file.size for file in (*files, *more)) <= ROOM:
                files += more
        return files

    def _cluster(self, table: Mapping[str, File], read: Callable[[File], bytes], index: int) -> list[File]:
        folder = self.run.cluster(index).path.relative_to(self.run.path).as_posix()
        record = table.get(f"{folder}/{DONE}")
        if record is None:
            return []
        contents = parse_record(json.loads(read(record)), DONE).contents
        if not isinstance(contents, ClusterContents):
            return []
        names = [name for name, _ in contents.holdout or contents.parts]
        return [record, *(table[f"{folder}/{name}"] for name in names if f"{folder}/{name}" in table)]


def _last_line(log: Path) -> str:
    """What a process said last."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line[:200] for line in reversed(lines) if line), "without a word")


def look(
    here: "Coordinator", scales: Scales | None, submission: SubmissionRow, row: TaskRow, drawn: Draw
) -> Weighed | None:
    """What is to be known of a segment before it is drawn; None while it is on the scales."""
    if scales is None:
        return Weighed(drawn)
    unit, result = Unit.model_validate(row.unit), Result.model_validate(submission.result)

    def samples() -> list[File]:
        with here.database.reading() as session:
            table = filing.table_of(session)
        return scales.samples(table, lambda file: here.artifacts.read(file.sha256), unit, drawn.value)

    segment = Segment(unit, result, drawn.value, samples)
    numbers = scales.weigh(here.artifacts, submission.id, segment)
    if numbers is None:
        return None
    with here.database.reading() as session:
        return Weighed(drawn, numbers, findings(numbers, known(session, submission, row)))


def findings(numbers: Mapping[str, Any], others: admission.Known) -> Findings:
    """What follows from what the scales say."""
    outcome = Findings()
    if "norm" in numbers:
        outcome = admission.numbers(numbers, others)
    elif numbers.get("finite") is False:
        outcome = Findings({"finite": "it holds numbers that are not finite"})
    judged = numbers.get("gate")
    return outcome if judged is None else outcome | Findings(doubts=judged["doubts"])


def known(session: Session, submission: SubmissionRow, row: TaskRow) -> admission.Known:
    """Numbers of other segments that the run goes on from: norms of the same kind of job and length."""
    newest = (
        select(SubmissionRow.facts, TaskRow.unit)
        .join(TaskRow, TaskRow.id == SubmissionRow.task)
        .where(TaskRow.role == "train", SubmissionRow.canonical, SubmissionRow.id != submission.id)
        .order_by(SubmissionRow.number.desc())
        .limit(REMEMBERED)
    )
    norms, sketches = [], {}
    steps = row.unit["last"] - row.unit["first"]
    for facts, unit in session.execute(newest):
        weight, length = facts.get("weight"), unit["last"] - unit["first"]
        if weight is None:
            continue
        sketches[unit["name"]] = weight["sketch"]
        if kind_of(unit["stage"]) == kind_of(row.stage) and 1 / ALIKE <= length / steps <= ALIKE:
            norms.append(weight["norm"])
    return admission.Known(norms, sketches)


def kind_of(stage: str) -> str:
    """Of what kind a stage is, of which there may be many."""
    head, _, number = stage.rpartition(" ")
    return head if number.isdigit() else stage


def kept(weighed: Weighed) -> dict[str, Any]:
    """What is remembered of a segment, for others to be compared with."""
    numbers = weighed.facts or {}
    return {"weight": {"norm": numbers["norm"], "sketch": numbers["sketch"]}} if numbers.get("sketch") else {}
