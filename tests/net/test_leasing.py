"""The machine of leases under every order of events that hypothesis can think of."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atoll.net import leasing
from atoll.net.leasing import LeaseError, Task, Terms

TERMS = Terms()
MACHINES = st.sampled_from(["a", "b", "c"])


class Leases(RuleBasedStateMachine):
    """Many machines, one task; a plain record of what happened is what the task is held against."""

    def __init__(self):
        super().__init__()
        self.task, self.now = Task(), 0.0
        self.owners = {}  # fence -> machine
        self.submissions = []
        self.rejected, self.accepted = set(), []
        self.failed = set()
        self.highest = 0

    @rule(seconds=st.floats(0, 5000))
    def time_passes(self, seconds):
        self.now += seconds
        before = self.task
        self.task = leasing.sweep(self.task, self.now, TERMS)
        if self.task != before:
            silence = self.now - before.heard
            assert silence > TERMS.suspect or self.now > before.deadline
        if self.task.state == "orphaned":
            assert self.now - self.task.heard > TERMS.lost or self.now > self.task.deadline

    @rule(machine=MACHINES, expected=st.floats(0, 20_000))
    def lease(self, machine, expected):
        before = self.task
        try:
            self.task = leasing.lease(self.task, machine, self.now, expected, TERMS)
        except LeaseError:
            assert before.state not in ("open", "orphaned")
            return
        assert self.task.fence == before.fence + 1
        assert self.task.deadline >= self.now + max(TERMS.least, 3 * expected) - 1e-6
        self.owners[self.task.fence] = machine

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def heartbeat(self, data):
        fence = data.draw(st.sampled_from(sorted(self.owners)))
        answer = leasing.heartbeat(self.task, fence, self.now)
        newest = fence == self.task.fence and self.task.state in ("leased", "suspect", "orphaned")
        assert (answer is not None) == newest
        self.task = answer or self.task

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), failed=st.booleans())
    def release(self, data, failed):
        fence = data.draw(st.sampled_from(sorted(self.owners)))
        before = self.task
        self.task = leasing.release(before, fence, self.owners[fence], failed, TERMS)
        if self.task is not before and failed:
            self.failed.add(self.owners[fence])

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def submit(self, data):
        fence = data.draw(st.sampled_from(sorted(self.owners)))
        name = f"s{len(self.submissions)}"
        before = self.task
        self.task, candidate = leasing.submit(before, fence, name)
        if before.state == "quarantined":
            assert not candidate
            return
        self.submissions.append((name, fence))
        assert candidate == (before.state not in ("submitted", "checked", "accepted", "final"))

    @precondition(lambda self: self.task.state in ("submitted", "checked"))
    @rule(verdict=st.sampled_from(["checked", "accepted", "rejected"]), blame=st.booleans())
    def judge(self, verdict, blame):
        name = self.task.candidate
        owner = self.owners[dict(self.submissions)[name]] if blame else ""
        later = [one for one, _ in self.submissions[[one for one, _ in self.submissions].index(name) + 1 :]]
        waiting = [one for one in later if one not in self.rejected]
        self.task = leasing.judge(self.task, name, verdict, owner, TERMS, waiting)
        if verdict == "accepted":
            self.accepted.append(name)
        if verdict == "rejected":
            self.rejected.add(name)
            if owner:
                self.failed.add(owner)

    @rule(data=st.data())
    def a_verdict_on_something_else_changes_nothing(self, data):
        verdict = data.draw(st.sampled_from(["accepted", "rejected"]))
        assert leasing.judge(self.task, "another", verdict, "a", TERMS) == self.task

    @rule(gap=st.floats(0, 1e5))
    def an_outage(self, gap):
        """The coordinator is away: whoever was in time before is in time after."""
        in_time = leasing.sweep(self.task, self.now, TERMS)
        since, self.now = self.now, self.now + gap
        self.task = leasing.amnesty(self.task, since, self.now)
        # the sums round in the last bits
        assert leasing.sweep(self.task, self.now - 1e-3, TERMS).state in (self.task.state, in_time.state)

    @rule()
    def finalise(self):
        self.task = leasing.finalise(self.task)

    @invariant()
    def fences_only_rise(self):
        assert self.task.fence >= self.highest
        self.highest = self.task.fence

    @invariant()
    def at_most_one_is_accepted(self):
        assert len(self.accepted) <= 1
        if self.accepted:
            assert self.task.state in ("accepted", "final")
            assert self.task.candidate == self.accepted[0]

    @invariant()
    def what_was_rejected_is_no_candidate(self):
        assert self.task.candidate not in self.rejected

    @invariant()
    def nothing_is_quarantined_for_one_machine(self):
        if self.task.state == "quarantined":
            assert len(self.failed) >= 2
        assert self.task.failed <= self.failed


Leases.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestLeases = Leases.TestCase


def leased(now=0.0):
    return leasing.lease(Task(), "one", now, 100, TERMS)


def test_silence_makes_suspect_then_orphaned_and_a_word_in_between_helps():
    task = leased()
    assert leasing.sweep(task, 900, TERMS).state == "leased"
    task = leasing.sweep(task, 901, TERMS)
    assert task.state == "suspect"
    with pytest.raises(LeaseError, match="suspect"):
        leasing.lease(task, "two", 901, 1, TERMS)
    assert leasing.heartbeat(task, 1, 950).state == "leased"
    assert leasing.sweep(task, 1801, TERMS).state == "orphaned", "the deadline"


def test_late_work_counts_unless_another_was_first():
    task = leasing.sweep(leased(), 4000, TERMS)
    task = leasing.lease(task, "two", 4000, 100, TERMS)
    assert leasing.heartbeat(task, 1, 4001) is None, "the first is told to stop"
    late, candidate = leasing.submit(task, 1, "late")
    assert candidate and late.candidate == "late"
    second, candidate = leasing.submit(late, 2, "in time, but second")
    assert not candidate and second.candidate == "late"
    rejected = leasing.judge(second, "late", "rejected", "one", TERMS, ["in time, but second"])
    assert rejected.state == "submitted" and rejected.candidate == "in time, but second"


def test_a_task_that_fails_on_two_machines_is_at_fault_itself():
    task = leasing.release(leased(), 1, "machine a", True, TERMS)
    assert task.state == "open"
    again = leasing.release(leasing.lease(task, "x", 0, 1, TERMS), 2, "machine a", True, TERMS)
    assert again.state == "open", "the same machine twice says nothing of the task"
    other = leasing.release(leasing.lease(again, "x", 0, 1, TERMS), 3, "machine b", True, TERMS)
    assert other.state == "quarantined"
    stopped = leasing.release(leased(), 1, "machine a", False, TERMS)
    assert stopped.failed == frozenset(), "who is stopped by a person has not failed"


def test_a_fence_that_nobody_has_is_refused():
    for action in (
        lambda task: leasing.heartbeat(task, 2, 0),
        lambda task: leasing.submit(task, 0, "x"),
        lambda task: leasing.release(task, 7, "m", False, TERMS),
    ):
        with pytest.raises(LeaseError, match="fence"):
            action(leased())


def test_what_was_built_on_sand_is_made_again():
    task, _ = leasing.submit(leased(), 1, "s")
    task = leasing.judge(task, "s", "accepted", "", TERMS)
    assert leasing.reopen(task).state == "open"
    assert leasing.reopen(leased()) == leased()


def test_an_absence_counts_from_when_the_holder_was_heard():
    """Heard at 70 by a coordinator that gave no sign of life from 0 to 100: only 30 seconds are forgiven."""
    assert leasing.unheard(70.0, 0.0, 100.0) == 30
    assert leasing.unheard(-5.0, 0.0, 100.0) == 100
    assert leasing.unheard(120.0, 0.0, 100.0) == 0
