"""Exact forgetting: what saw some samples is made again from the start of its lineage, all else stays.

What comes out is what a run would be that never had those samples and was partitioned alike, bit for bit.
"""

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from atoll.components import calibrating, refreshing
from atoll.credit import signature
from atoll.data import forgetting
from atoll.errors import ConfigError, RunError
from atoll.runs import RESOLVED, Run, evaluations, file_digest, graph, inputs, read_json, write_json
from atoll.runs.components import FOLDER, write_members
from atoll.runs.graph import Node
from atoll.runs.locks import alone
from atoll.runs.records import StageRecord
from atoll.runs.survey import survey
from atoll.sampling import grown

CERTIFICATES = "forgotten"
UNFINISHED = "unfinished.json"
"""Which samples are being forgotten; it goes when that is done."""
RESULTS = ("evaluation", "credit")
"""Folders of what was measured with samples of the data as references."""
Start = Literal["ask", "keep", "retrain"]
Progress = Callable[[str, int, int], None]


def forget(
    run: Run,
    samples: Path | None,
    start: Start = "ask",
    key: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Forget samples, make again what saw them, and certify it; whoever was interrupted goes on."""
    folder = run.path / CERTIFICATES
    with alone(folder, "changed"):
        plan = _plan(run, samples, start)
        write_json(folder / UNFINISHED, plan)
        ids = {bytes.fromhex(raw) for raw in plan["ids"]}
        forgetting.take_out(run, ids, clusters=not run.config.grouped_by_start)
        if plan["start"] == "keep":
            _stamp_start(run)
        again = _cleared(run, plan["before"])
        plan["again"] = [*plan["again"], *(node.name for node in again if node.name not in plan["again"])]
        write_json(folder / UNFINISHED, plan)
        _make(again, progress)
        removed = _remove_results(run)
        _renew_rows(run)
        certificate = _certificate(run, plan, removed)
        path = folder / f"{len(list(folder.glob('certificate-*.json'))):04d}.json"
        path = path.with_name(f"certificate-{path.name}")
        write_json(path, certificate if key is None else signature.signed(certificate, key))
        (folder / UNFINISHED).unlink()
    run.event("samples forgotten", count=len(ids), certificate=path.name)
    return {"certificate": str(path), **certificate}


def _plan(run: Run, samples: Path | None, start: Start) -> dict[str, Any]:
    """What is to be forgotten and who saw it, as it was before anything was touched."""
    unfinished = run.path / CERTIFICATES / UNFINISHED
    if unfinished.is_file():
        plan: dict[str, Any] = read_json(unfinished)
        return plan
    if samples is None:
        raise ConfigError("say what to forget: --samples FILE, with ids, names, or the samples themselves")
    if run.config.grouped_by_start and start != "retrain":
        raise ConfigError(
            "clusters were found by what the start sees in these samples and others: nothing of this run can "
            "stay; --start retrain makes start, clusters and experts again (exact, at the cost of the run)"
        )
    if not (run.data.here and run.partition.here):
        raise RunError(f"{run.path} has no samples here; forget where data/ and partition/ are")
    ids = forgetting.find(run, *forgetting.wanted(samples, run.config.data))
    if not ids:
        raise ConfigError(f"{samples} names no samples; nothing was forgotten")
    clusters = forgetting.clusters_of(run, ids)
    for k, rows in clusters.items() if not run.config.grouped_by_start else ():
        if rows >= run.cluster(k).contents.rows:
            raise ConfigError(
                f"these are all samples of cluster {k}; leave it out with `atoll drop {run.path} {k}`"
            )
    if run.config.start is not None and run.start.done and start == "ask":
        raise ConfigError(
            "the common start of all experts has seen these samples too; --start retrain makes it and all "
            "experts again (exact), --start keep only the experts of their clusters (the start and whoever "
            "began with it still know them); or begin experts with public data: expert.init"
        )
    return {
        "ids": sorted(raw.hex() for raw in ids),
        "clusters": {str(k): rows for k, rows in clusters.items()},
        "again": [],
        "start": start,
        "before": _digests(run),
        "source": run.config.data.source,
    }


def _digests(run: Run) -> dict[str, dict[str, str]]:
    """The digests of all files of all finished stages."""
    return {node.name: node.stage.record.files for node in graph.nodes(run) if node.stage.done}


def _stamp_start(run: Run) -> None:
    """The start stays, although its data has changed: it is not made again, and the certificate says so."""
    if run.start.done:
        record = run.start.record
        run.start.write(StageRecord.of(inputs.start_from(run), record.files, record.contents))


def _cleared(run: Run, before: Collection[str]) -> list[Node]:
    """Clear all that saw the samples or was made from what did; what of it a run samples with.

    What was never made is left so: who draws ancestrally needs no router.
    """
    for node in reversed(survey(run).stale):
        node.stage.clear()
    left = survey(run)
    return [node for node in (*left.stale, *left.left) if _is_needed(node) and node.name in before]


def _make(nodes: Sequence[Node], progress: Progress | None) -> None:
    for number, node in enumerate(nodes):
        if progress is not None:
            progress("parts made again", number, len(nodes))
        node.make()


def _is_needed(node: Node) -> bool:
    """Networks that samples are drawn with, and clusters; students and pictures are left to `atoll run`."""
    return node.kind.name in ("pool", "init", "start", "features", "partition", "shared", "expert", "router")


def _remove_results(run: Run) -> list[str]:
    """Throw away what was measured or drawn with the samples among the references, or by who saw them."""
    kept_samples = [path for path in run.path.glob("samples*") if path.is_dir()]
    folders = [run.path / name for name in RESULTS if (run.path / name).is_dir()]
    # Features of samples and classifiers that were trained on them: whoever shares them makes them again
    cached = [folder for folder in [evaluations.kept(run)] if folder.is_dir()]
    for folder in (*folders, *kept_samples, *cached):
        shutil.rmtree(folder)
    run.report.clear()
    return sorted(folder.name for folder in (*folders, *kept_samples, *cached))


def _renew_rows(run: Run) -> None:
    """Router rows of own clusters are means of their samples: those of other samples go."""
    members = run.members
    current = {grown.known_rows(run, k) for k in range(run.config.partition.clusters)}
    for path in (run.path / FOLDER).glob("known-*.safetensors"):
        if path not in current:
            path.unlink()
    if members.present:
        calibrating.own_rows(run)
        write_members(run.path, refreshing.undone(run, members))  # it may have seen them
    refreshing.tidy(run)


def _certificate(run: Run, plan: Mapping[str, Any], removed: list[str]) -> dict[str, Any]:
    """What was forgotten, what was made again, what is bit for bit as before, and what remains where."""
    before, after = plan["before"], _digests(run)
    anew = range(run.config.partition.clusters) if run.config.grouped_by_start else plan["clusters"]
    rewritten = {"data", "partition", *(f"cluster {k}" for k in anew)}
    unchanged = [name for name in sorted(after) if before.get(name) == after[name]]
    changed = [name for name in sorted(after) if name not in unchanged]
    steps = {name: getattr(graph.node(run, name).stage.contents, "steps", 0) for name in plan["again"]}
    return {
        "samples": [hashlib.sha256(bytes.fromhex(raw)).hexdigest() for raw in plan["ids"]],
        "clusters": plan["clusters"],
        "exact": plan["start"] != "keep",
        "made_again": [{"stage": name, "steps": count} for name, count in steps.items()],
        "unchanged": {name: after[name] for name in unchanged},
        "changed": {name: {"before": before.get(name), "after": after[name]} for name in changed},
        "not_explained": [name for name in changed if name not in rewritten and name not in steps],
        "removed": sorted(set(before) - set(after)) + removed,
        "remains": _remains(run, plan),
        "steps": sum(steps.values()),
        "recipe": file_digest(run.path / RESOLVED),
    }


def _remains(run: Run, plan: Mapping[str, Any]) -> list[str]:
    """What this command cannot or did not undo, and where."""
    remains = [
        f"the source ({plan['source']}): delete the samples there, or --start-over reads them again",
        "copies elsewhere: exports, buckets, uploads, studies, samples that were given away",
        "servers that run: they draw with what they have loaded until they are started again",
    ]
    if not run.config.grouped_by_start:
        remains.append("the partition: its centres were found with them among all samples, and are kept")
    if run.data.contents.dtype != "uint8":
        remains.append("mean and standard deviation of channels, which are of all samples")
    if plan["start"] == "keep":
        remains.append(f"the common start ({run.start.path}) and all experts that began with it")
    if run.config.launch.store:
        remains.append(f"the store {run.config.launch.store}: delete the stages that are changed there")
    if run.members.added:
        remains.append("components: their owners' data is not here; ask them to forget, or drop them")
    return remains
