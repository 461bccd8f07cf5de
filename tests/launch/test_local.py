import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from atoll.config import LaunchConfig
from atoll.errors import AtollError, Interrupted
from atoll.launch import local, machine
from atoll.launch.local import Job
from atoll.runs import read_json, read_lines
from tests.machines import children, wait_for


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Jobs that run a line of Python instead of `atoll`, in real processes."""
    start = subprocess.Popen

    def popen(command, **options):
        *call, number, parent, code = command
        assert call == [sys.executable, "-m", "atoll.launch.tied"]
        assert (int(number), int(parent)) == (signal.SIGTERM, os.getpid())
        return start([sys.executable, "-c", textwrap.dedent(code)], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())

    def job(name, code):
        return Job(name, [code], tmp_path / name, steps=1, batch=1)

    return job


def quiet(jobs):
    pass


def test_every_job_runs_and_one_failure_waits_for_the_others(fake, tmp_path):
    jobs = [
        fake("bad", "import sys; print('atoll: it broke'); sys.exit(1)"),
        fake("good", f"import time; time.sleep(0.8); open({str(tmp_path / 'made')!r}, 'w').close()"),
    ]
    with pytest.raises(AtollError, match=r"bad failed: it broke \(log: .*bad\.log\)"):
        local.run_jobs(jobs, LaunchConfig(at_once=2), quiet)
    assert (tmp_path / "made").exists(), "the other job was not stopped"
    assert [job.code for job in jobs] == [1, 0]


def test_no_more_at_once_than_allowed(fake, tmp_path):
    code = f"""
    import os, time
    place = {str(tmp_path)!r}
    open(os.path.join(place, f"running-{{os.getpid()}}"), "w").close()
    time.sleep(0.3)
    many = len([name for name in os.listdir(place) if name.startswith("running-")])
    open(os.path.join(place, "seen"), "a").write(f"{{many}} ")
    os.unlink(os.path.join(place, f"running-{{os.getpid()}}"))
    """
    local.run_jobs([fake(f"job{i}", code) for i in range(5)], LaunchConfig(at_once=2), quiet)
    seen = [int(word) for word in (tmp_path / "seen").read_text().split()]
    assert len(seen) == 5
    assert max(seen) == 2


def test_a_job_gets_its_threads(fake, tmp_path):
    write = f"open({str(tmp_path / 'threads')!r}, 'w').write(os.environ['OMP_NUM_THREADS'])"
    local.run_jobs([fake("job", f"import os; {write}")], LaunchConfig(at_once=1, threads=3), quiet)
    assert (tmp_path / "threads").read_text() == "3"


def test_each_gpu_gets_one_job(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("4", "6"))
    write = f"open({str(tmp_path / 'seen')!r}, 'a').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    code = f"import os, time; time.sleep(0.4); {write}"
    local.run_jobs([fake(f"job{i}", code) for i in range(2)], LaunchConfig(), quiet)
    assert sorted((tmp_path / "seen").read_text()) == ["4", "6"]


def test_a_stop_reaches_every_job_and_waits_until_it_has_saved(fake, tmp_path):
    code = f"""
    import signal, sys, time
    def save(*_):
        time.sleep(0.5)
        open({str(tmp_path / "saved")!r}, "w").close()
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
    open({str(tmp_path / "ready")!r}, "w").close()
    time.sleep(30)
    """

    def stop(jobs):
        if (tmp_path / "ready").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        local.run_jobs([fake("job", code)], LaunchConfig(), stop)
    assert (tmp_path / "saved").exists()


def test_jobs_that_saved_and_stopped_are_not_failures(fake):
    with pytest.raises(Interrupted, match="job stopped and saved"):
        local.run_jobs([fake("job", "import sys; sys.exit(75)")], LaunchConfig(), quiet)


def test_a_killed_job_is_named(fake):
    with pytest.raises(AtollError, match="killed by SIGKILL"):
        local.run_jobs([fake("job", "import os; os.kill(os.getpid(), 9)")], LaunchConfig(), quiet)


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_orphans_and_loses_no_step(prepared, tiny):
    """Its jobs are asked to save and stop, as if it had asked them itself."""
    settings = ["expert.steps=5000", "expert.log_every=1", "expert.save_every=5000", "launch.at_once=3"]
    run = prepared(*settings)
    sets = [part for text in settings for part in ("--set", text)]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "atoll", "run", str(tiny), *sets], stderr=subprocess.PIPE, text=True
    )
    metrics = run.expert(0).path / "metrics.jsonl"
    wait_for(lambda: len(read_lines(metrics)) > 3, launcher)
    experts = children(launcher.pid)
    assert experts
    launcher.kill()
    launcher.communicate()
    for _ in range(1200):
        if not any(Path(f"/proc/{pid}").exists() for pid in experts):
            break
        time.sleep(0.1)
    assert not [pid for pid in experts if Path(f"/proc/{pid}").exists()], "orphans"
    saved = read_json(run.expert(0).path / "state" / "latest.json")["step"]
    assert saved > 3
    assert "stopped at step" in (run.path / "experts" / "00.log").read_text()
