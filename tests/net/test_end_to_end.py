"""A coordinator and four workers as real processes, each worker where it reaches the coordinator alone."""

import json
import random
import time

import pytest
from sqlalchemy import select

from atoll import config
from atoll.net import units
from atoll.net.database import Database
from atoll.net.limits import Limits
from atoll.net.protocol import Numerics
from atoll.net.publishing import pinned
from atoll.net.tables import SubmissionRow, TaskRow
from atoll.runs import Run, graph, write_json
from tests import commands
from tests.net import namespaces
from tests.net.doing import PINNED
from tests.thorough import often, some

pytestmark = pytest.mark.slow
WORKERS, KILLS = often(4, 2), often(4, 2)


def settings():
    return [word for setting in PINNED for word in ("--set", setting)]


@pytest.mark.parametrize("kind", some(["postgresql", "sqlite"], 1))
def test_strangers_make_the_same_bits_as_one_machine(tiny, tmp_path, recorded, request, kind):
    """From images to samples; `recorded` is the same run in one process, which equals `atoll run`.

    Workers are killed at random, with what they do, and started again.
    """
    url = str(tmp_path / "atoll.db") if kind == "sqlite" else request.getfixturevalue("postgresql").new()
    runs = tmp_path / "hosted"
    options = ["--quorum", "1", "--every", "2", "--linger", "900", "--json", "--database", url]
    here = ["--host", "0.0.0.0", "--port", "0"]
    host = commands.Command(["host", tiny, *settings(), *here, *options], {"ATOLL_RUNS": str(runs)})
    workers: list[commands.Command] = []
    with namespaces.machines(WORKERS) if namespaces.permitted() else _none() as places:
        try:
            port = json.loads(host.line())["address"].rpartition(":")[2]

            def join(number):
                namespace, address = places[number]
                home = tmp_path / f"home{number}"
                line = ["join", f"http://{address}:{port}", "--home", home, "--cpus", "1", "--gpus", "0"]
                return commands.Command([namespace, *line, "--json"], module="tests.net.elsewhere")

            for number in range(WORKERS):
                _measured(tmp_path / f"home{number}")
                workers.append(join(number))
            killed = _kill_some(workers, join, tmp_path)
            ends = [worker.communicate(timeout=900) for worker in workers]
            assert [worker.returncode for worker in workers] == [0] * WORKERS, ends
            host.terminate()  # all have heard that it is finished
            out, err = host.communicate(timeout=900)
            assert json.loads(out.splitlines()[-1])["finished"], out + err
        finally:
            for process in [*workers, host]:
                if process.poll() is None:
                    process.kill()
                process.wait()
    said = [json.loads(out.splitlines()[-1]) for out, _ in ends]
    assert sum(one["accepted"] for one in said) == sum(one["submitted"] for one in said) >= 13 - killed
    assert _accepted(url) >= 13
    made = Run(runs / "tiny", pinned(config.load(tiny, PINNED)))
    assert made.report.done, "its host has drawn it"
    for node in units.stages(made):
        assert node.stage.record == graph.node(recorded.run, node.name).stage.record, node.name


def _kill_some(workers, join, folder):
    """SIGKILL for whoever holds a lease, now and then; each comes back at once."""
    source, killed = random.Random(0), 0
    while killed < KILLS and all(worker.poll() is None for worker in workers):
        time.sleep(0.02)
        number = source.randrange(WORKERS)
        if any((folder / f"home{number}" / "leases").glob("*/offer.json")) and source.random() < 0.1:
            workers[number].kill()
            workers[number].wait()
            workers[number] = join(number)
            killed += 1
    assert killed, "nobody died: the test is none"
    return killed


def _accepted(url):
    """How many units were accepted, each once."""
    database = Database(url)
    with database.reading() as session:
        taken = select(TaskRow.key).join(SubmissionRow, SubmissionRow.task == TaskRow.id)
        keys = session.scalars(taken.where(SubmissionRow.state == "accepted")).all()
    database.close()
    assert len(keys) == len(set(keys))
    return len(keys)


def _measured(home):
    """What the minute's benchmark would write down: all of them would take longer than the run."""
    home.mkdir()
    facts = {"speed": 1e10, "memory": 1 << 40, "gpu": False, "numerics": Numerics().model_dump()}
    limits = Limits(cpus=1, gpus=0).variables()
    write_json(home / "measured.json", {**facts, "settings": limits, "date": time.time()})


class _none:  # noqa: N801 - a context
    """Without the right to make namespaces, workers are where we are; their jobs have no sockets anyway."""

    def __enter__(self):
        return [("", "127.0.0.1")] * WORKERS

    def __exit__(self, *error):
        return None
