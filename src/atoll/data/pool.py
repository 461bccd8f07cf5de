"""All samples together, before there are clusters: what a start is trained on that clusters are made by."""

import numpy as np

from atoll.data.encode import Progress
from atoll.data.partition import HOLDOUT, PART, part_file, plan_units, read_rows, shared, write_rows
from atoll.data.parts import Parts, writing
from atoll.runs import Run, Stage, inputs
from atoll.runs.records import ClusterContents


def pool(run: Run, *, progress: Progress | None = None) -> Stage[ClusterContents]:
    """Write all samples of `data/` as one cluster, what is held out apart."""
    stage, made_from = run.pool, inputs.pool_from(run)
    with writing(stage, made_from) as left:
        if left:
            contents = _write(run, stage, progress or (lambda what, done, total: None))
            names = [name for name, _ in (*contents.parts, *contents.holdout)]
            stage.finish(made_from, names, contents)
    return stage


def _write(run: Run, stage: Stage, tell: Progress) -> ClusterContents:
    """Unit by unit: memory does not grow with the data."""
    parts = Parts(run.data, run.config.data.holdout)
    units = plan_units(parts)
    files: dict[str, list[tuple[str, int]]] = {PART: [], HOLDOUT: []}
    for number, unit in enumerate(units):
        table = read_rows(parts, unit)
        masks = {PART: parts.kept, HOLDOUT: parts.held_out}
        for prefix, mask in masks.items():
            wanted = np.concatenate([mask(name)[rows] for name, _, rows in unit])
            if wanted.any():
                name = part_file(prefix, number)
                files[prefix].append(
                    (name, write_rows(table, wanted, stage.path / name, parts.contents.group))
                )
        tell("parts pooled", number + 1, len(units))
    rows = sum(count for _, count in files[PART])
    return ClusterContents(
        **shared(parts, [rows]),
        cluster=0,
        rows=rows,
        prior=1.0,
        bytes=parts.contents.bytes * rows // max(1, parts.contents.rows),
        parts=tuple(files[PART]),
        holdout=tuple(files[HOLDOUT]),
    )
