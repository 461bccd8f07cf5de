"""The server as a process of its own: started, asked, killed and started again."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests import commands
from tests.serving import served


def started(run, *arguments):
    """A server in a process of its own, and its address once it is ready."""
    process = commands.Command(["serve", run.path, "--port", "0", "--json", *arguments])
    return process, json.loads(process.line())["address"]


def under_way(client, pool, num, steps):
    """A long request that has begun; one that was over before anybody saw it is asked again."""
    address = str(client.base_url).rstrip("/")
    while True:
        body = {"num": num, "steps": steps}
        long = pool.submit(httpx.post, f"{address}/v1/samples", json=body, timeout=600)
        while not long.done():
            if f'atoll_rows{{model="run"}} {num}.0' in client.get("/metrics").text:
                return long
            time.sleep(0.05)
        long.result().raise_for_status()


@pytest.mark.thorough
def test_asked_stopped_killed_and_started_again(tmp_path):
    """What is under way is finished by a stop, and ends cleanly by a kill; another start serves at once."""
    run = served(tmp_path / "run", "class")
    process, address = started(run)
    with httpx.Client(base_url=address, timeout=600) as client, ThreadPoolExecutor() as pool:
        before = client.post("/v1/samples", json={"seed": 5}).json()["samples"][0]["png"]
        long = under_way(client, pool, 64, 1000)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(httpx.TransportError):  # an end of the connection, and no half of an answer
            long.result()
    process, address = started(run)
    with httpx.Client(base_url=address, timeout=600) as client, ThreadPoolExecutor() as pool:
        assert client.post("/v1/samples", json={"seed": 5}).json()["samples"][0]["png"] == before
        long = under_way(client, pool, 8, 200)
        process.send_signal(signal.SIGTERM)
        assert len(long.result().json()["samples"]) == 8
    assert process.wait() in (0, -signal.SIGTERM)
