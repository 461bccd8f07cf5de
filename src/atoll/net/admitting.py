"""What every trained state must be before it is taken: the chain that was told of, the tensors it began with.

No tensor is opened: hashes are compared, and headers read. Whatever is wrong here is wrong for whoever looks.
"""

from atoll.errors import AtollError
from atoll.net.artifacts import Artifacts
from atoll.net.protocol import File, Result, Unit
from atoll.net.verification import admission, asking
from atoll.net.verification.admission import Findings, Malformed


def findings(artifacts: Artifacts, unit: Unit, result: Result) -> Findings:
    """What is wrong with the state at the end of a segment; nothing of what is no training's."""
    after = _state(result.outputs, unit.last)
    if unit.role != "train" or after is None:
        return Findings()
    before = _state(unit.inputs, unit.first)
    # The first state of a training is nobody's file: it follows from the recipe, and audits begin with it.
    begin = before.sha256 if before is not None else "".join(result.chain[:1])
    linked = admission.chain(result.chain, unit.first, unit.last, max(1, unit.every), begin, after.sha256)
    if "://" in artifacts.store.address:  # headers are read where states lie, not fetched for it
        return linked
    return linked | admission.shapes(artifacts.path(after.sha256), _tensors(artifacts, before))


def _state(files: tuple[File, ...], step: int) -> File | None:
    end = f"/state/{asking.state_name(step)}"
    return next((file for file in files if f"/{file.path}".endswith(end)), None)


def _tensors(artifacts: Artifacts, before: File | None) -> dict[str, admission.Tensor] | None:
    try:
        return None if before is None else admission.header(artifacts.path(before.sha256))
    except (Malformed, AtollError):  # somebody else's fault, and not to be laid at this door
        return None
