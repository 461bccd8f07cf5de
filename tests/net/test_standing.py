"""How a run stands, counted."""

import pytest

from atoll.net import standing
from atoll.net.results import NotYours
from tests.net.crowds import Machine, coordinator


def test_everything_is_counted(database, tmp_path):
    here = coordinator(database, tmp_path)
    machine, idle = Machine.of(here), Machine.of(here)
    receipt = machine.work()
    machine.lease()
    seen = standing.standing(here)
    assert seen.tasks == {"accepted": 1, "leased": 1, "open": 1}
    assert [stage["name"] for stage in seen.stages] == ["expert 0", "expert 1"]
    assert seen.submissions == {"accepted": 1} and (seen.machines, seen.awake) == (2, 2)
    assert seen.files == 1 and seen.bytes == len(b"expert 0 at 20") and not seen.done
    here.clock.time += 4000
    assert standing.standing(here).awake == 0
    rows = {row["device"]: row for row in standing.workers(here)}
    assert rows[machine.id[:8]]["accepted"] == 1 and rows[machine.id[:8]]["doing"].startswith("expert")
    assert rows[idle.id[:8]]["doing"] == ""
    assert [task.state for task, _ in standing.queue(here)] == ["leased", "open"]
    row, lease = standing.submission(here, receipt.submission)
    assert row.lease == lease.id and standing.submissions(here)[0][0].id == row.id
    with pytest.raises(NotYours):
        standing.submission(here, "nothing")
