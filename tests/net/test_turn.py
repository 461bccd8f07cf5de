"""One lease: stopped it is given back with what was done; a job that dies goes on; a busy machine pauses."""

import signal

from atoll.errors import AtollError
from atoll.net.home import LOG
from atoll.net.limits import Limits
from tests.net.joined import Ended, Quiet, lent, served, work_on


class Played:
    """A job that answers as it is told: exit codes in turn, None while it runs."""

    def __init__(self, codes, then=None):
        self.codes, self.then, self.signals = list(codes), then, []

    def poll(self):
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def wait(self):
        return self.codes[-1]

    def send_signal(self, number):
        self.signals.append(number)
        if self.then is not None:
            self.then(number, self)


def tasks(hosted):
    from sqlalchemy import select

    from atoll.net.tables import TaskRow

    with hosted.coordinator.database.reading() as session:
        return {row.name: row.state for row in session.scalars(select(TaskRow))}


def test_asked_to_stop_it_lets_the_job_save_and_gives_the_lease_back(run_of_units, recorded, tmp_path):
    asked, tell = [], Quiet()

    def saved(number, job):
        if number == signal.SIGTERM:
            job.codes = [75]

    job = Played([None], saved)

    def start(held, home, limits):
        asked.append(True)
        return job

    with served(run_of_units) as (hosted, url):
        answer = work_on(lent(url, tmp_path, tell=tell, start=start, stopping=lambda: bool(asked)))
        assert tasks(hosted) == {"data / cut": "open"}
    assert answer["ended"] == "asked to stop"
    assert signal.SIGTERM in job.signals
    assert "data / cut: given back: its user stopped it" in tell.lines


def test_a_job_that_dies_is_started_again_and_one_that_fails_is_no_work_of_this_machine(
    run_of_units, recorded, tmp_path
):
    codes, tell = [-9, 0], Quiet()

    def start(held, home, limits):
        code = codes.pop(0) if codes else 1
        if code == 0:
            return recorded(held, home, limits)
        (held.folder / LOG).write_text("atoll: it cannot be done\n")
        return Ended(code)

    with served(run_of_units) as (hosted, url):
        first = lent(url, tmp_path, tell=tell, start=start)
        assert work_on(first, once=True)["accepted"] == 1
        assert "data / cut: its job died (-9); going on from its last state" in tell.lines
        work_on(lent(url, tmp_path, tell=tell, start=start), once=True)
        assert any(line.endswith("given back: it cannot be done") for line in tell.lines)
        assert hosted.coordinator.done is False


def test_a_machine_in_use_pauses_the_job_and_keeps_the_lease(run_of_units, recorded, tmp_path, monkeypatch):
    reasons, tell = ["", "", "the machine is in use", "", ""], Quiet()
    job = Played([None, None, None, None, 0])
    monkeypatch.setattr(Limits, "reason_to_wait", lambda *given: reasons.pop(0) if reasons else "")

    def start(held, home, limits):
        recorded(held, home, limits)
        return job

    with served(run_of_units) as (_, url):
        assert work_on(lent(url, tmp_path, tell=tell, start=start), once=True)["accepted"] == 1
    assert [number for number in job.signals if number in (signal.SIGSTOP, signal.SIGCONT)] == [
        signal.SIGSTOP,
        signal.SIGCONT,
    ]
    assert "data / cut: paused: the machine is in use" in tell.lines and "data / cut: goes on" in tell.lines


def test_a_full_disk_is_nobodys_fault(run_of_units, tmp_path):
    tell = Quiet()

    def start(held, home, limits):
        raise OSError(28, "No space left on device")

    with served(run_of_units) as (hosted, url):
        work_on(lent(url, tmp_path, tell=tell, start=start), once=True)
        assert tasks(hosted) == {"data / cut": "open"}, "no failure is counted"
    assert any("no space left on this machine" in line for line in tell.lines)
    assert issubclass(AtollError, Exception)


def test_a_full_disk_is_no_fault_of_the_unit(run_of_units, recorded, tmp_path):
    """Else two machines without room would set it aside for all."""
    tell = Quiet()

    def start(held, home, limits):
        words = f"atoll: {held.run}/data: no space left; free some and run the same command again"
        (held.folder / LOG).write_text(words)
        return Ended(1)

    with served(run_of_units) as (hosted, url):
        work_on(lent(url, tmp_path, tell=tell, start=start), once=True)
        assert tasks(hosted) == {"data / cut": "open"}
        assert work_on(lent(url, tmp_path, start=recorded), once=True)["submitted"] == 1, "it may try again"
    assert "data / cut: given back: no space left on this machine" in tell.lines
