"""Experts are trained alone, and that is a fact of the operating system: no network, and the same result."""

import os
import shutil
import subprocess

import pytest

from atoll.runs import Run
from atoll.storage.mirror import Mirror
from tests import commands
from tests.machines import Machines
from tests.thorough import often

pytestmark = pytest.mark.slow

WALLED = "tests.launch.walled"
REACH = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); print('reached')"


def namespaces_are_allowed():
    return commands.run("own-network", "tests.program", os.devnull, module=WALLED).returncode == 0


def test_the_stronger_wall_stands_wherever_the_system_gives_one():
    """A process that is forked gets a network of its own where a new one does, or the wall is none."""
    command = ["unshare", "--user", "--map-root-user", "--net", "true"]
    if shutil.which("unshare") and not subprocess.run(command, capture_output=True, check=False).returncode:
        assert namespaces_are_allowed()


@pytest.fixture(scope="module")
def walls():
    """What an expert is put behind; the strongest that this machine allows."""
    return ["no-sockets", "own-network"] if namespaces_are_allowed() else ["no-sockets"]


def test_nothing_can_be_reached_from_there(walls, store, tmp_path):
    """Each wall itself is tested: the same attempt succeeds in front of it and fails behind it."""
    attempt = tmp_path / "reach.py"
    attempt.write_text(REACH)
    port = store.proxy.port
    assert commands.python(attempt, port).stdout == "reached\n"
    said = {wall: commands.run(wall, "tests.program", attempt, port, module=WALLED) for wall in walls}
    assert all(one.returncode != 0 and "reached" not in one.stdout for one in said.values())
    assert "no business with sockets" in said["no-sockets"].stderr
    assert all("Network is unreachable" in said[wall].stderr for wall in walls[1:])


def test_an_expert_without_network_is_the_expert(walls, store, tiny, tmp_path, _tiny_finished):
    place = Machines(store, tiny, tmp_path)
    place.seed(_tiny_finished)
    runs = [place.run(f"island-{index}") for index in range(often(3, 1))]
    for index, run in enumerate(runs):
        Mirror.of(run).download(run.cluster(index))  # its inputs are there; from here on there is no network
    requests = len(store.proxy.requests)
    for index, run in enumerate(runs):
        line = ["atoll", "expert", index, tiny]
        done = commands.run(
            ",".join(walls), *line, environment={"ATOLL_RUNS": str(run.path.parent)}, module=WALLED
        )
        assert done.returncode == 0, done.stderr
    reference = Run.open(_tiny_finished)
    for index, run in enumerate(runs):
        assert run.expert(index).record.files == reference.expert(index).record.files, "bit for bit"
        assert [path.name for path in run.partition.path.iterdir()] == [f"cluster-{index:02d}"]
    assert len(store.proxy.requests) == requests
