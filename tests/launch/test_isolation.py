"""Experts are trained alone, and that is a fact of the operating system: no network, and the same result."""

import shutil
import socket
import subprocess
import sys

import pytest

from atoll.runs import Run
from atoll.storage.mirror import Mirror
from tests.machines import Machines
from tests.thorough import often

pytestmark = pytest.mark.slow

NO_SOCKETS = """
import os, runpy, sys

def forbid(event, arguments):
    if event.startswith("socket."):
        raise PermissionError(f"{event}: an expert has no business with sockets")

sys.addaudithook(forbid)
"""
"""A process in which nobody can open a socket."""
EXPERTS = """
import atoll.cli, atoll.train.jobs, torch._dynamo  # which the first optimiser would load, in each of them

recipe, *folders = sys.argv[1:]
codes = []
for index, folder in enumerate(folders):
    child = os.fork()
    if child == 0:
        os.environ["ATOLL_RUNS"] = folder
        sys.argv = ["atoll", "expert", str(index), recipe]
        runpy.run_module("atoll", run_name="__main__")
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
"""
"""`atoll expert`, once for each folder, each in a process of its own."""

REACH = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); print('reached')"
OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]
"""A network namespace of one's own: not even this machine can be reached from it."""


def namespaces_are_allowed():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def alone():
    """What an expert's command is put behind; the strongest that this machine allows."""
    return OWN_NETWORK if namespaces_are_allowed() else []


def test_nothing_can_be_reached_from_there(alone, store):
    """The wall itself is tested: the same attempt succeeds in front of it and fails behind it."""
    port = store.proxy.port
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
    attempt = NO_SOCKETS + REACH
    behind = subprocess.run(
        [sys.executable, "-c", attempt, str(port)], capture_output=True, text=True, check=False
    )
    assert behind.returncode != 0 and "no business with sockets" in behind.stderr
    if alone:
        command = [*alone, sys.executable, "-c", REACH, str(port)]
        behind = subprocess.run(command, capture_output=True, text=True, check=False)
        assert behind.returncode != 0 and "reached" not in behind.stdout


def test_an_expert_without_network_is_the_expert(alone, store, tiny, tmp_path, _tiny_finished):
    place = Machines(store, tiny, tmp_path)
    place.seed(_tiny_finished)
    runs = [place.run(f"island-{index}") for index in range(often(3, 1))]
    for index, run in enumerate(runs):
        Mirror.of(run).download(run.cluster(index))  # its inputs are there; from here on there is no network
    requests = len(store.proxy.requests)
    done = subprocess.run(
        [
            *alone,
            sys.executable,
            "-c",
            NO_SOCKETS + EXPERTS,
            str(tiny),
            *(str(run.path.parent) for run in runs),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == str([0 for _ in runs]), done.stderr
    reference = Run.open(_tiny_finished)
    for index, run in enumerate(runs):
        assert run.expert(index).record.files == reference.expert(index).record.files, "bit for bit"
        assert [path.name for path in run.partition.path.iterdir()] == [f"cluster-{index:02d}"]
    assert len(store.proxy.requests) == requests
