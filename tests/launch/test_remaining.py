"""Every job here has 100 steps of 10 samples."""

import json

import pytest

from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.launch.remaining import Remaining, clock_time

SPEC = JobSpec("expert 0", "{}", "nowhere")


@pytest.fixture
def job(tmp_path):
    def make(name, step=None, rate=None, *, code=None, after=()):
        folder = tmp_path / name
        if step is not None:
            folder.mkdir()
            line = {"step": step, "loss": 1.0, "samples_per_second": rate}
            (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        about = Job(name, SPEC, folder, 100, 10, after=frozenset(after))
        return JobStatus(about, started=step is not None, running=step is not None, code=code)

    return make


def test_waiting_jobs_take_the_places_that_become_free_at_the_rate_of_their_kind(job):
    jobs = [job("expert 0", 60, 4.0), job("expert 1", 70, 6.0), job("expert 2"), job("expert 3")]
    whole = Remaining().look(jobs)
    assert (whole.done, whole.failed, whole.jobs, whole.rate) == (0, 0, 4, 10.0)
    # 400 / 4 = 100 and 300 / 6 = 50; then 1000 / 5 = 200 each: from 50 to 250, and from 100 to 300
    assert whole.seconds == pytest.approx(300)
    # another kind, by the mean of all: from 250 to 450
    assert Remaining().look([*jobs, job("router")]).seconds == pytest.approx(450)


def test_a_finished_job_tells_the_rate_of_its_kind(job):
    jobs = [job("expert 0", 100, 10.0, code=0), job("router", 50, 2.0), job("expert 1")]
    whole = Remaining().look(jobs)
    assert (whole.done, whole.rate) == (1, 2.0)
    assert whole.seconds == pytest.approx(500 / 2 + 1000 / 10)  # one at a time


def test_what_waits_for_another_job_comes_after_it(job):
    jobs = [job("start", 50, 10.0), job("expert 0", after=["start"]), job("expert 1", after=["start"])]
    assert Remaining(at_once=1).look(jobs).seconds == pytest.approx(50 + 100 + 100)
    assert Remaining(at_once=3).look(jobs).seconds == pytest.approx(50 + 100)


def test_the_most_that_were_seen_at_once_will_be_again(job):
    remaining, jobs = Remaining(), [job("expert 0", 50, 10.0), job("expert 1", 50, 10.0)]
    remaining.look(jobs)
    jobs[1].code = 0
    both = [jobs[0], job("expert 2")]
    assert remaining.at_once == 2
    assert remaining.look(both).seconds == pytest.approx(100)  # beside the 50 of the other


def test_a_job_that_was_stopped_has_only_the_rest_left(job):
    waiting = job("expert 0", 75, 5.0)
    waiting.running = waiting.started = False
    assert Remaining().look([waiting]).seconds == pytest.approx(250 / 5)


def test_nothing_follows_a_job_that_failed(job):
    whole = Remaining().look([job("start", 50, 10.0, code=1), job("expert 0", after=["start"])])
    assert (whole.state, whole.seconds) == ("0 of 2 jobs done, 1 failed", 0.0)


def test_before_anything_is_measured_nothing_is_claimed(job):
    assert Remaining().look([job("expert 0"), job("expert 1")]).seconds is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0:00:00"), (252.4, "0:04:12"), (252.9, "0:04:13"), (36_061, "10:01:01")]
)
def test_a_time_in_words(seconds, words):
    assert clock_time(seconds) == words
