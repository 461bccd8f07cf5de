"""The samples of a run as one of its stages."""

from collections.abc import Callable

from atoll.runs import DONE, STARTED, Run, Stage, graph
from atoll.runs.records import Contents
from atoll.sampling import sample


def draw(run: Run, *, progress: Callable[[str, int, int], None] | None = None) -> Stage:
    """Draw what the recipe asks for into `samples/`."""
    node = graph.node(run, "samples")
    stage, made_from = node.stage, node.made_from()
    if not stage.begin(made_from):
        return stage
    count = None if progress is None else lambda done, total: progress("sample", done, total)
    written = sample.sample(run, stage.path, progress=count)
    files = (path.name for path in stage.path.iterdir() if path.suffix in (".png", ".npy", ".json"))
    own = [name for name in files if name not in (DONE, STARTED)]
    stage.finish(made_from, own, Contents.model_validate(written))
    return stage
