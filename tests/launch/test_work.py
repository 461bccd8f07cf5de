import subprocess
import sys

from atoll.config import RunConfig
from atoll.launch import work
from atoll.launch.job import JobSpec
from atoll.runs import graph


def test_a_stage_is_made_here_where_there_is_no_store(play):
    run = play()
    work.work(graph.node(run, "one"))
    assert run.stage("one").done


def test_a_worker_makes_one_stage(play):
    run = play(one="fail")
    for stage, code in (("two", 0), ("one", 1)):
        _, *arguments = JobSpec.of(stage, run.config, run.path).arguments()
        command = [sys.executable, "-m", "atoll.launch.work", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "atoll: one broke\n" if code else "")
    assert run.stage("two").done


def test_settings_of_a_stranger_are_checked(tmp_path):
    (tmp_path / "resolved.json").write_text(RunConfig(name="a").model_dump_json().replace('"seed"', '"sede"'))
    command = [sys.executable, "-m", "atoll.launch.work", tmp_path / "resolved.json", tmp_path, "router"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown key 'sede'" in done.stderr
