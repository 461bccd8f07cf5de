"""`atoll host`, as a process: it says where it is, stops when asked, and goes on when started again."""

import json
import signal

import httpx

from tests import commands


def started(tiny, tmp_path, *more):
    arguments = ["host", str(tiny), "--port", "0", "--json", "--quorum", "1", *more]
    process = commands.Command(arguments, {"ATOLL_RUNS": str(tmp_path / "runs")})
    return process, json.loads(process.line())


def test_it_serves_a_manifest_and_goes_on_after_a_stop(tiny, tmp_path):
    manifests = []
    for _ in range(2):
        process, facts = started(tiny, tmp_path)
        manifests.append(httpx.get(f"{facts['address']}/v1/manifest").json())
        state = httpx.get(f"{facts['address']}/v1/run").json()
        assert state["run"] == facts["manifest"] and state["tasks"] == {"open": 1}
        assert httpx.get(f"{facts['address']}/").status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["finished"] is False
    assert manifests[0] == manifests[1]


def test_a_run_goes_on_elsewhere_and_a_stranger_audits_it(tiny, tmp_path):
    first, facts = started(tiny, tmp_path)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=600)
    store = f"{facts['run']}/network/store"
    second, again = started(f"--from={store}", tmp_path / "elsewhere")
    try:
        assert again["manifest"] == facts["manifest"]
        assert again["run"] != facts["run"]
        answer = commands.run("audit", again["address"], "--replay", "0", "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["forks"] == [1]
    finally:
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=600)
    for arguments in (["host"], ["host", str(tiny), "--from", store]):
        answer = commands.run(*arguments)
        assert answer.returncode == 1
        assert "give a recipe, or --from" in answer.stderr
