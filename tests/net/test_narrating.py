"""What a host hears while it serves: who came, what is there, what was set aside."""

from atoll.net import units
from atoll.net.narrating import Narrator
from atoll.net.tables import PathRow
from tests.net.joined import Quiet, lent, served, work_on


def test_stages_and_machines_are_told_once(run_of_units, recorded, tmp_path):
    tell, again = Quiet(), Quiet()
    stages = [node.name for node in units.stages(run_of_units)]
    total = len(stages)
    with served(run_of_units) as (hosted, url):
        narrator = Narrator(tell, hosted)
        narrator.look()
        assert tell.lines == [] and tell.moments[-1].startswith(f"serving: 0 of {total} stages are there")
        work_on(lent(url, tmp_path, start=recorded))
        narrator.look()
        narrator.look()
        assert tell.lines[0] == "1 machine joined so far"
        assert tell.lines[1:] == [f"{name} is there ({total} of {total} stages)" for name in stages]
        with hosted.coordinator.database.writing() as session:
            session.delete(session.get_one(PathRow, "samples/done.json"))
        Narrator(again, hosted).look()
        assert again.lines[-1] == f"going on: {total - 1} of {total} stages are there already"
        narrator.look()
        assert tell.lines[-1] == "samples turned out to be false and is made again"
