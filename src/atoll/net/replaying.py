"""Somebody's training taken again by a stranger, from what it was handed to what it handed in."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from atoll.errors import AtollError, ConfigError
from atoll.net import facts, sealed
from atoll.net.protocol import Numerics, Unit
from atoll.net.sources import Source
from atoll.net.statements import compact
from atoll.net.verification import asking, bands
from atoll.net.verification.comparison import Report
from atoll.runs import read_json, safe_name, stamped, write_json

WORK = "atoll.net.work"


def replay(
    source: Source, manifest: Mapping[str, object], unit: Unit, result: facts.Result
) -> tuple[str, str]:
    """What a replay of a whole segment says: agrees, inconclusive, differs or unchecked, and a sentence."""
    if isinstance(result.chain, str) or not result.chain or isinstance(result.outputs, str):
        return "unchecked", "its states are listed elsewhere"
    try:
        audit = asking.audit_unit(unit, len(result.chain) - 2, {unit.last: result.outputs})
    except AtollError as error:
        return "unchecked", str(error)
    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as name:
        place, folder = Path(name), Path(name) / "run"
        for file in audit.inputs:
            if not source.save(file.sha256, folder / safe_name(file.path)):
                return "unchecked", f"{file.path} cannot be had"
        (place / "unit.json").write_text(audit.model_dump_json(), encoding="utf-8")
        resolved = manifest.get("resolved")
        write_json(place / "resolved.json", stamped(resolved if isinstance(resolved, dict) else {}))
        problem = _run(place, folder)
        return ("unchecked", problem) if problem is not None else _judged(place, folder, manifest, result)


def _run(place: Path, folder: Path) -> str | None:
    """Do the unit in a sealed process; why it could not be done, if so."""
    arguments = [str(place / "unit.json"), str(place / "resolved.json"), str(folder)]
    order = sealed.Order(WORK, arguments, place, place, place / "hidden", imports=(WORK,))
    code = sealed.run(order, place / "log")
    if code == 0:
        return None
    lines = (place / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"it does not run here ({lines[-1] if lines else f'exit code {code}'})"


def _judged(
    place: Path, folder: Path, manifest: Mapping[str, object], result: facts.Result
) -> tuple[str, str]:
    """The replay beside what was committed to: bits, or a band that was measured for the two machines."""
    try:
        report = Report.model_validate_json((folder / asking.REPORT).read_bytes())
        theirs = bands.name_of(Numerics.model_validate(result.numerics))
        own = bands.name_of(Numerics.model_validate(read_json(place / "made.json")["numerics"]))
        policy = manifest.get("policy")
        tree = policy.get("bands") if isinstance(policy, dict) else None
        known = bands.Bands.model_validate_json(compact(tree or {}))
    except (AtollError, ValidationError, KeyError, OSError) as error:
        return "unchecked", f"it cannot be compared ({str(error).splitlines()[0]})"
    if report.committed != result.chain[-1]:
        return "differs", "it handed in another state than it committed to"
    if report.comparison.equal:
        return "agrees", "bit for bit"
    judgement = bands.judge(report.comparison, known.between(own, theirs), same_class=own == theirs)
    words = f"its update is {report.comparison.relative:.3g} off, cosine {report.comparison.cosine:.4f}"
    return judgement, f"{words}, here on {own}, there on {theirs}"


def require_torch() -> None:
    """Say so before anything is downloaded."""
    try:
        import torch  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("replaying needs torch; install it, or audit with --replay 0") from None
