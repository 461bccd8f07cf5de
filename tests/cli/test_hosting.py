"""`atoll host`, as a process: it says where it is, stops when asked, and goes on when started again."""

import json
import os
import signal
import subprocess
import sys

import httpx


def started(tiny, tmp_path, *more):
    arguments = ["host", str(tiny), "--port", "0", "--json", "--quorum", "1", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "atoll", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ATOLL_RUNS": str(tmp_path / "runs")},
    )
    return process, json.loads(process.stdout.readline())


def test_it_serves_a_manifest_and_goes_on_after_a_stop(tiny, tmp_path):
    manifests = []
    for _ in range(2):
        process, facts = started(tiny, tmp_path)
        manifests.append(httpx.get(f"{facts['address']}/v1/manifest").json())
        state = httpx.get(f"{facts['address']}/v1/run").json()
        assert state["run"] == facts["manifest"] and state["tasks"] == {"open": 1}
        assert httpx.get(f"{facts['address']}/").status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert json.loads(out)["finished"] is False
    assert manifests[0] == manifests[1]
