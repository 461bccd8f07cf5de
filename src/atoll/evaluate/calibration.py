"""Likelihoods made fair: what each expert is worse by at everything, fitted to known samples and kept."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.credit import likelihood
from atoll.credit.likelihood import Calibration
from atoll.data import holdout
from atoll.data.store import Batch, Reader
from atoll.evaluate import evaluation, held_out
from atoll.evaluate.routing import told as condition_of
from atoll.runs import CREDIT, Run, Stage, made_in, read_stamped, stamped, write_json
from atoll.sampling import makers
from atoll.sampling.ensemble import Ensemble

FILE = "calibration.json"
"""Beside the values of a run; another is made where networks or noise levels differ."""
KINDS = ("untold", "told")
"""Whether experts are told the class or caption of a sample: they err otherwise then."""


class Known(NamedTuple):
    """Samples of one part's own cluster, and whether nobody trained on them."""

    number: int
    batch: Batch
    unseen: bool


def fair(
    run: Run,
    ensemble: Ensemble,
    conditional: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration | None:
    """What was fitted of these networks, or is now; None where no samples are at hand, or none are wanted."""
    earlier = kept(run, conditional, run.config.credit.calibration)
    if earlier is not None or not run.config.credit.calibration:
        return earlier
    known = samples(run, ensemble)
    if len(known) < 2:
        return None
    config, answers = run.config.credit, list[Tensor]()
    for done, one in enumerate(known):
        made = makers.makers(
            ensemble,
            one.batch.x_0,
            levels=config.levels,
            batch=config.batch,
            seed=held_out.seed_of(run),
            condition=condition_of(ensemble, one.batch) if conditional else None,
        )
        assert made.nll is not None
        answers.append(made.nll)
        if progress is not None:
            progress(done + 1, len(known))
    maker = torch.tensor([one.number for one in known for _ in range(len(one.batch.x_0))])
    fit = likelihood.calibrated(torch.cat(answers), maker)
    _keep(run, conditional, fit, known)
    return fit


def kept(run: Run, conditional: bool = False, most: int = 0) -> Calibration | None:
    """What was fitted earlier, if it is of these networks, noise levels and, where said, so many samples."""
    path = (run.path / CREDIT).with_name(FILE)
    record = read_stamped(path) if path.is_file() else {}
    entry = record.get(KINDS[conditional])
    if (
        entry is None
        or most not in (0, record["samples"])
        or any(record[key] != value for key, value in _key(run).items())
    ):
        return None
    return Calibration(torch.tensor(entry["offsets"], dtype=torch.float64), float(entry["temperature"]))


def samples(run: Run, ensemble: Ensemble) -> list[Known]:
    """As many samples of each part that is there as are wanted: held-out ones, else some of training.

    None of a part whose data are elsewhere.
    """
    most, known = run.config.credit.calibration, list[Known]()
    for number in range(len(ensemble.experts)):
        stage = None if number in ensemble.absent else home_of(run, number)
        if stage is not None and stage.here:
            known.append(Known(number, *some_of(stage, most, run.config.seed + 1)))
    return known


def home_of(run: Run, number: int) -> Stage | None:
    """The folder of a part's own samples, if anybody here knows it."""
    if number < run.config.partition.clusters:
        return run.cluster(number)
    private = made_in(run, number)
    return None if private is None else private.cluster(0)


def some_of(stage: Stage, most: int, seed: int) -> tuple[Batch, bool]:
    """Some samples of a cluster: what is held out of it, else of training; and whether nobody saw them."""
    unseen = holdout.read([stage], most)
    if unseen is not None:
        return unseen, True
    rows = min(most, Reader([stage], 1, seed).rows)
    with contextlib.closing(Reader([stage], rows, seed).batches()) as batches:
        return next(batches), False


def _key(run: Run) -> dict[str, Any]:
    """Of what it holds."""
    config = run.config.credit
    return {
        "networks": evaluation.networks(run),
        "levels": config.levels,
        "seed": held_out.seed_of(run),
    }


def _keep(run: Run, conditional: bool, fit: Calibration, known: Sequence[Known]) -> None:
    path, key = (run.path / CREDIT).with_name(FILE), _key(run)
    earlier = read_stamped(path) if path.is_file() else {}
    same = all(earlier.get(name) == value for name, value in key.items())
    key["samples"] = run.config.credit.calibration
    entries = {kind: earlier[kind] for kind in KINDS if same and kind in earlier}
    entries[KINDS[conditional]] = {
        "offsets": fit.offsets.tolist(),
        "temperature": fit.temperature,
        "known": sum(len(one.batch.x_0) for one in known),
        "unseen": all(one.unseen for one in known),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stamped({**key, **entries}))
