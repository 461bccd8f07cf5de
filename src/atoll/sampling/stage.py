"""The samples of a run as one of its stages."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.runs import DONE, STARTED, Run, Stage, graph
from atoll.runs.records import SampledContents
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
    stage.finish(made_from, own, contents(written))
    return stage


def contents(written: Mapping[str, Any]) -> SampledContents:
    """What was written, by names in its own folder: a run may move to another place."""
    fields = SampledContents.model_fields.keys()
    facts = {key: value for key, value in written.items() if key in fields}
    names = {key: Path(facts[key]).name for key in ("samples", "grid", "provenance") if key in facts}
    makers = {str(expert): count for expert, count in written["makers"].items()}
    asked = {key: written[key] for key in ("class", "prompt") if key in written}
    return SampledContents.model_validate({**facts, **names, "makers": makers, "asked": asked})
