"""What every trained state must be before it is taken: the chain that was told of, the tensors it began with.

No tensor is opened: hashes are compared, and headers read. Whatever is wrong here is wrong for whoever looks.
"""

from collections.abc import Callable
from pathlib import Path

from atoll.errors import AtollError
from atoll.net.artifacts import Artifacts
from atoll.net.protocol import File, Result, Unit
from atoll.net.verification import admission, asking
from atoll.net.verification.admission import Findings, Malformed


def findings(artifacts: Artifacts, unit: Unit, result: Result, *, strict: bool = False) -> Findings:
    """What is wrong with the state at the end of a segment; nothing of what is no training's.

    `strict` is for runs whose work is audited: without its last state there is nothing to audit.
    """
    where = None if "://" in artifacts.store.address else artifacts.path  # not fetched for headers alone
    return of_files(where, unit, result, strict=strict)


def of_files(
    where: Callable[[str], Path] | None, unit: Unit, result: Result, *, strict: bool = False
) -> Findings:
    """The same of files that lie somewhere, by digest; None where headers cannot be read."""
    after = _state(result.outputs, unit.last)
    if unit.role != "train" or (after is None and not strict):
        return Findings()
    if after is None:
        return Findings({"state": f"the state at step {unit.last} is not among what was handed in"})
    before = _state(unit.inputs, unit.first)
    # The first state of a training is nobody's file: it follows from the recipe, and audits begin with it.
    begin = before.sha256 if before is not None else "".join(result.chain[:1])
    linked = admission.chain(result.chain, unit.first, unit.last, max(1, unit.every), begin, after.sha256)
    if where is None:
        return linked
    known = linked | admission.shapes(where(after.sha256), _tensors(where, before))
    weights = next((file for file in result.outputs if file.path.endswith("/weights.safetensors")), None)
    if weights is None or not known.admitted:
        return known
    return known | admission.weights(where(after.sha256), where(weights.sha256))


def speed(unit: Unit, elapsed: float, measured: float) -> Findings:
    """Whether a training was faster than the machine that did it was measured to be: odd, and no more."""
    return admission.speed(unit.work, elapsed, measured or None) if unit.role == "train" else Findings()


def _state(files: tuple[File, ...], step: int) -> File | None:
    end = f"/state/{asking.state_name(step)}"
    return next((file for file in files if f"/{file.path}".endswith(end)), None)


def _tensors(where: Callable[[str], Path], before: File | None) -> dict[str, admission.Tensor] | None:
    try:
        return None if before is None else admission.header(where(before.sha256))
    except (Malformed, AtollError):  # somebody else's fault, and not to be laid at this door
        return None
