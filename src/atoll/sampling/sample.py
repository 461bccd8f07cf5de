"""From what an address leads to, to samples on disk."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.config import settings_digest
from atoll.errors import AtollError, Interrupted
from atoll.runs import RESOLVED, Run, Stage, digest
from atoll.runs.records import SampleFormat
from atoll.sampling import opening
from atoll.sampling.opening import Opened
from atoll.sampling.request import Request
from atoll.sampling.sampler import Sampler
from atoll.sampling.tally import Progress
from atoll.sampling.vocabulary import Asked, Prompts
from atoll.sampling.writer import Writer, own_folder
from atoll.storage.cache import store_address

PROTECTED = (
    "Protected: what one half of the parts alone has seen is unlikely. This is no guarantee: both halves may "
    "have seen copies of one picture, and so has whatever all parts began with."
)
"""What `protect` does, and what it does not."""


def default_out(path: Path) -> Path:
    """Where samples go unless the command says otherwise: into a run or an expert of one's own."""
    own = ((path / RESOLVED).is_file() and store_address(path) is None) or Stage(path).done
    return path / "samples" if own else Path("samples")


def sample(
    opened: Opened,
    out: Path,
    *,
    own: bool | None = None,
    label: Asked | None = None,
    prompt: Prompts | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Sample a finished run and write the samples, pictures of them, and who made which.

    A lone expert does not know what its values mean, so they are written as they are.
    They are written batch by batch; whoever is interrupted keeps those that are finished. With `own` the
    request gets a folder of its own: `out` itself, if it was asked for (True), or one beside it (False); and
    the very same request, all of whose samples are there, is answered by them.
    """
    sampler = opening.model_of(opened, **settings)
    request = sampler.request(label=label, prompt=prompt)
    stages = opened.networks if isinstance(opened, Run) else [opened]
    contents = opening.contents_of(opened) if isinstance(opened, Run) else None
    networks = [stage.digest for stage in stages if stage.done]
    return _sample_to(sampler, contents, out, request, networks, own, progress)


def _sample_to(
    sampler: Sampler,
    contents: SampleFormat | None,
    out: Path,
    request: Request,
    networks: Sequence[str],
    own: bool | None,
    progress: Progress | None,
) -> dict[str, Any]:
    identity = digest(
        [settings_digest(request.settings), [list(words) for words in request.words], list(networks)]
    )
    if own is not None:
        out = own_folder(out, identity, asked=own)
    writer = Writer(out, contents, request, identity)
    chosen = {"strategy_asked": request.settings.strategy, "networks": len(sampler.ensemble.experts)}
    before = None if own is None else writer.repeated()
    if before is not None:
        return {**before, **chosen, "repeated": True}
    writer.open(sampler.ensemble.shape)
    try:
        for indices, some in sampler.stream(request, progress):
            writer.add(indices, some)
    except KeyboardInterrupt:
        written = writer.finish()
        raise Interrupted(
            f"stopped after {len(writer)} of {request.num} samples; they are in {out}"
            if written
            else "stopped before the first samples were done; nothing was written"
        ) from None
    except AtollError:
        with contextlib.suppress(AtollError):  # what is finished stays; what was said first counts
            writer.finish()
        raise
    return {**writer.finish(), **chosen}


def place_sentence(written: Mapping[str, Any]) -> str:
    """Where a person finds the samples."""
    place = written.get("grid", written["samples"])
    return f"{'The same was asked for before, and is here:' if 'repeated' in written else 'Wrote'} {place}"


def strategy_sentence(written: Mapping[str, Any]) -> str:
    """Which strategy was used, and why, where it was not asked for by name."""
    if written["networks"] == 1:
        return "One network, so there is nothing to choose"
    sentence = f"Strategy {written['strategy']}"
    if written["strategy_asked"] != "auto":
        return sentence
    if written["strategy"] == "full":  # which auto never chooses by itself
        return f"{sentence} (protected samples ask all parts)"
    if written["certainty"] is None:
        return f"{sentence} (auto: exact at the cost of one expert)"
    return f"{sentence} (auto: the router is {written['certainty']:.0%} sure of the cluster at t = 1)"
