"""The pages of a finished run, drawn on its host by a process without key and network.

It opens what strangers have made, and may be misled by it as any machine of theirs may.
"""

import logging
import tempfile
from pathlib import Path

from atoll.launch.job import JobSpec, last_line
from atoll.net import sealed
from atoll.runs import Run, graph

logger = logging.getLogger(__name__)


def draw(run: Run, hidden: Path) -> None:
    """Draw every page that is not there, without a look into a folder with keys.

    A host without torch cannot, and the run is none the worse.
    """
    for node in graph.made(run):
        if node.kind.page and not node.stage.current(node.made_from()):
            with tempfile.TemporaryDirectory(prefix="atoll-page-") as name:
                problem = _problem(run, node.name, Path(name), hidden)
            if problem:
                logger.warning("the %s was not drawn (%s); `atoll run` draws it", node.name, problem)


def _problem(run: Run, stage: str, place: Path, hidden: Path) -> str:
    """What a process that draws has to complain of; nothing if all went well."""
    module, *arguments = JobSpec.of(stage, run.config, run.path.resolve()).arguments()
    imports = (module, *graph.makers(stage))
    order = sealed.Order(
        module, arguments, run.path, place, hidden, {"OMP_NUM_THREADS": "1"}, imports=imports
    )
    log = place / "log"
    code = sealed.run(order, log)
    return (last_line(log) or f"exit code {code}") if code else ""
