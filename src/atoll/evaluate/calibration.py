"""Likelihoods made fair: what each expert is worse by at everything, fitted to what each draws."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atoll.credit import likelihood
from atoll.credit.likelihood import Calibration
from atoll.evaluate import alone, evaluation, held_out
from atoll.flow import draws
from atoll.runs import CREDIT, Run, read_stamped, stamped, write_json
from atoll.sampling import makers
from atoll.sampling.sampler import Sampler

FILE = "calibration.json"
"""Beside the values of a run; another is made where networks or noise levels differ."""
KINDS = ("untold", "told")
"""Whether experts are told the class or caption of a sample: they err otherwise then."""
STEPS, SOLVER = 12, "dpm++"
"""How samples are drawn for it, with the guidance that the run has."""


def fair(
    run: Run,
    sampler: Sampler,
    conditional: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration | None:
    """What was fitted of these networks, or is now; None where no samples are wanted, or one part is alone.

    Every part that is there draws some samples, whose maker is known then, and is asked about them as all
    others are. No data are needed; fitted to real samples, whose likelihoods err by more than those of drawn
    ones, it misnamed drawn ones (docs/results.md).
    """
    most = run.config.credit.calibration
    earlier = kept(run, conditional, most)
    there = [k for k in range(len(sampler.ensemble.experts)) if k not in sampler.ensemble.absent]
    if earlier is not None or not most or len(there) < 2:
        return earlier
    answers = list[Tensor]()
    for number in there:
        answers.append(_answers(run, sampler, number, most, conditional))
        if progress is not None:
            progress(len(answers), len(there))
    fit = likelihood.calibrated(torch.cat(answers), torch.tensor(there).repeat_interleave(most))
    _keep(run, conditional, fit, most * len(there))
    return fit


def _answers(run: Run, sampler: Sampler, number: int, num: int, conditional: bool) -> Tensor:
    """How likely samples of one part are under each."""
    config, seed = run.config.credit, held_out.seed_of(run)
    known = alone.drawn(run, sampler, number, num, seed_of(run, number), solver=SOLVER, steps=STEPS)
    made = makers.makers(
        sampler.ensemble,
        known.x_0,
        levels=config.levels,
        batch=config.batch,
        seed=seed,
        condition=known.condition if conditional else None,
    )
    assert made.nll is not None
    return made.nll


def seed_of(run: Run, number: int) -> int:
    """The seed of what a part draws for this: a function of the run's seed and of the part."""
    return int(
        torch.randint(2**31, (1,), generator=draws.generator(run.config.seed, f"credit/known/{number}"))
    )


def kept(run: Run, conditional: bool = False, most: int = 0) -> Calibration | None:
    """What was fitted earlier, if it is of these networks, noise levels and, where said, so many samples.

    What an earlier version fitted to real samples is nobody's.
    """
    path = (run.path / CREDIT).with_name(FILE)
    record = read_stamped(path) if path.is_file() else {}
    entry = record.get(KINDS[conditional])
    if (
        entry is None
        or "drawn" not in entry
        or most not in (0, record["samples"])
        or any(record[key] != value for key, value in _key(run).items())
    ):
        return None
    return Calibration(torch.tensor(entry["offsets"], dtype=torch.float64), float(entry["temperature"]))


def _key(run: Run) -> dict[str, Any]:
    """Of what it holds."""
    config = run.config.credit
    return {
        "networks": evaluation.networks(run),
        "levels": config.levels,
        "seed": held_out.seed_of(run),
    }


def _keep(run: Run, conditional: bool, fit: Calibration, known: int) -> None:
    path, key = (run.path / CREDIT).with_name(FILE), _key(run)
    earlier = read_stamped(path) if path.is_file() else {}
    key["samples"] = run.config.credit.calibration
    same = all(earlier.get(name) == value for name, value in key.items())
    entries = {kind: earlier[kind] for kind in KINDS if same and kind in earlier}
    entries[KINDS[conditional]] = {
        "offsets": fit.offsets.tolist(),
        "temperature": fit.temperature,
        "drawn": known,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stamped({**key, **entries}))
