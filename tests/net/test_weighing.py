"""What is odd about a segment's numbers makes sure of audits; what is wrong with them refuses it."""

import json

import pytest

from atoll import config
from atoll.net import weighing
from atoll.net.protocol import File, Unit
from atoll.net.tables import RecordRow, SubmissionRow, TaskRow, VerdictRow
from atoll.net.verification.admission import Known
from atoll.net.weighing import Scales
from atoll.runs import Run
from tests.net.policed import CALM, small

GOOD = {"finite": True, "changed": 1.0, "norm": 1.0, "sketch": [1.0, 0.0]}
GATE = {"own": 0, "unseen": True, "changes": {}, "doubts": {}}


class Pretended(Scales):
    """Says what it is told to, of segments of a plan that has no samples."""

    def __init__(self, run, said):
        self.asked: list[list[str]] = []

        def process(place, arguments):
            self.asked.append(sorted(path.name for path in (place / "run").rglob("*") if path.is_symlink()))
            if said is not None:
                (place / "answer.json").write_text(json.dumps(said))
            return said is not None

        super().__init__(run, process, beside=False)

    def samples(self, table, read, unit, value):
        return []


@pytest.fixture
def weighed(tmp_path, tiny):
    def run(said, **rules):
        world = small(tmp_path, CALM.model_copy(update={"first": 1, **rules}))
        world.here.judge.scales = Pretended(Run(tmp_path / "run", config.load(tiny)), said)
        ann, *others = (world.machine() for _ in range(5))
        assert ann.work().state == "checked"
        world.tick()
        return world, ann, others

    return run


def test_a_segment_is_weighed_before_anything_is_drawn_and_the_log_says_so(weighed):
    world, _ann, _ = weighed({**GOOD, "gate": GATE})
    assert world.here.judge.scales.asked == [["after.safetensors"]]
    (row,) = world.rows(VerdictRow, check="gate")
    assert row.verdict == "pass" and row.by == "coordinator" and not row.hard
    order = [one["check"] for one in world.told("verdict")]
    assert order == ["admission", "gate"] and len(world.told("challenge")) == 1
    told = world.told("verdict")[1]["evidence"]
    assert told["norm"] == 1.0 and told["gate"] == GATE and "sketch" not in told
    assert told["round"] == world.told("beacon")[0]["round"]
    world.tick()
    assert len(world.here.judge.scales.asked) == 1, "once"
    (submission,) = world.rows(SubmissionRow)
    assert submission.facts["weight"] == {"norm": 1.0, "sketch": [1.0, 0.0]}


def test_what_is_odd_is_replayed_by_two_and_punishes_nobody(weighed):
    doubts = {"worse": "the loss on its own cluster rose"}
    world, ann, others = weighed({**GOOD, "gate": {**GATE, "doubts": doubts}}, floor=0.01)
    (asked,) = world.told("challenge")
    assert asked["due"] and asked["reason"] == "odd: worse" and asked["repeated"]
    assert world.rows(VerdictRow, check="gate")[0].verdict == "inconclusive"
    ann.show()
    for one in others:
        world.tick()
        world.clock.time += 61  # now anybody may look, and not only who was drawn
        one.work(roles=("audit",))
    assert [row.verdict for row in world.rows(VerdictRow, phase="accept")] == ["pass", "pass"]
    assert world.rows(SubmissionRow, account=ann.name)[0].state == "accepted" and world.escrow(ann) == 1000
    assert [row.hard for row in world.rows(RecordRow, account=ann.name)] == [0]


@pytest.mark.parametrize("said", [{**GOOD, "finite": False}, {"finite": False}, {**GOOD, "changed": 0.0}])
def test_numbers_that_nobody_can_build_on_are_out_of_the_run_and_nobody_is_punished(weighed, said):
    world, ann, _ = weighed(said)
    (submission,) = world.rows(SubmissionRow)
    assert submission.state == "rejected" and not submission.canonical
    assert world.rows(TaskRow, role="train")[0].state == "open" and not world.told("challenge")
    assert not any(one["hard"] for one in world.told("verdict"))
    assert not world.rows(RecordRow, account=ann.name)


def test_scales_that_break_delay_nobody(weighed):
    world, _, _ = weighed(None)
    (row,) = world.rows(VerdictRow, check="gate")
    assert row.verdict == "inconclusive" and "could not be weighed" in row.evidence["why"]
    assert len(world.told("challenge")) == 1 and "weight" not in world.rows(SubmissionRow)[0].facts


def test_norms_and_copies_are_seen_beside_others():
    others = Known([1.0, 1.1, 0.9, 1.05, 0.95], {"expert 1 @ 0..20": [0.0, 2.0]})
    assert set(weighing.findings({**GOOD, "norm": 30.0}, others).doubts) == {"norm"}
    assert set(weighing.findings({**GOOD, "sketch": [0.0, 7.0]}, others).doubts) == {"copy"}
    both = weighing.findings({**GOOD, "gate": {**GATE, "doubts": {"elsewhere": "…"}}}, others)
    assert set(both.doubts) == {"elsewhere"} and both.admitted
    assert weighing.findings({"finite": True, "why": "…"}, others).doubts == {}


def test_one_is_compared_with_segments_of_its_kind_and_length(weighed):
    world, _, _ = weighed({**GOOD, "gate": GATE})
    (submission,), (row,) = world.rows(SubmissionRow), world.rows(TaskRow, role="train")
    for stage, last, norms in (("expert 7", 25, [1.0]), ("expert 7", 60, []), ("router", 20, [])):
        other = TaskRow(unit={**row.unit, "last": last}, stage=stage)
        with world.database.reading() as session:
            known = weighing.known(session, SubmissionRow(id="another"), other)
            assert known.norms == norms and known.sketches == {row.name: [1.0, 0.0]}
            assert weighing.known(session, submission, row).sketches == {}, "never with itself"


def test_samples_are_of_the_own_cluster_and_of_others_that_the_beacon_draws(prepared, monkeypatch):
    run = prepared()
    table = {}
    for path in sorted((run.path / "partition").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            name = path.relative_to(run.path).as_posix()
            table[name] = File(path=name, sha256="0" * 64, size=path.stat().st_size)
    unit = small_unit("expert 2")

    def asked(value):
        files = Scales(run).samples(table, lambda file: (run.path / file.path).read_bytes(), unit, value)
        return list(dict.fromkeys(file.path.split("/")[1] for file in files))

    assert asked("00" * 32)[0] == "cluster-02" and sorted(asked("00" * 32)) == [
        f"cluster-{i:02d}" for i in range(3)
    ]
    monkeypatch.setattr(weighing, "OTHERS", 1)
    assert {tuple(asked(f"{n:064x}")) for n in range(9)} == {
        ("cluster-02", f"cluster-0{i}") for i in range(2)
    }
    monkeypatch.setattr(weighing, "ROOM", 0)
    assert asked("00" * 32) == []
    assert Scales(run).samples(table, bytes, small_unit("router"), "00" * 32) == []


def small_unit(stage):
    return Unit(run="0" * 64, name=stage, stage=stage, role="train", first=0, last=20, every=10)
