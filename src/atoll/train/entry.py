"""What an expert's samples are by two moments, and from which noise on these tell as much as the expert."""

import torch

from atoll import devices
from atoll.config import ENTRY_RANK, ENTRY_ROWS, ENTRY_SAMPLES, ENTRY_TIMES, ExpertConfig
from atoll.data.store import Batch
from atoll.flow import gaussian
from atoll.models import checkpoint, entry, shrunk
from atoll.models.entry import Entry
from atoll.models.expert import as_expert
from atoll.runs import Stage, replacing
from atoll.train import moments, trials
from atoll.train.trials import Trial


def write(
    stage: Stage, cluster: Stage, config: ExpertConfig, blueprint: checkpoint.Blueprint, seed: int
) -> list[str]:
    """Measure an expert whose files are written, if that is asked for, and write it beside them."""
    if not config.entry:
        return []
    device = devices.best()
    network, _ = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device)
    expert, shares = as_expert(network, blueprint.objective), stage.path / shrunk.FILE
    if moments.needed(blueprint):  # as it is sampled
        expert = shrunk.read(shares, expert, device)
    some, judged = trials.samples(cluster, ENTRY_SAMPLES, seed)
    trial = Trial(expert, blueprint, judged, ENTRY_ROWS, seed)
    with replacing(stage.path / entry.FILE) as beside:
        entry.write(beside, _measured(trial, _known(some, blueprint, device)))
    return [entry.FILE]


def _known(some: Batch, blueprint: checkpoint.Blueprint, device: torch.device) -> Entry:
    """Moments of samples by what they are told: a class has its own mean, and the rest with the others."""
    x_0, shifts = some.x_0, None
    if blueprint.condition == "class":
        assert some.label is not None
        shifts = gaussian.by_class(x_0, some.label, blueprint.classes)
        x_0, shifts = x_0 - shifts[some.label], shifts.to(device)
    known = gaussian.Gaussian(*(value.to(device) for value in gaussian.fitted(x_0, ENTRY_RANK)))
    return Entry(known, torch.empty(0), torch.empty(2, 0), shifts)


@torch.inference_mode()
def _measured(trial: Trial, known: Entry) -> Entry:
    errors = []
    for time in ENTRY_TIMES:
        x_t, t, predicted = trial.at(time)
        answers = predicted, gaussian.velocity(known.told(trial.condition), x_t, t)
        errors.append([(trial.target - each).double().square().mean().cpu() for each in answers])
    table = torch.tensor(errors, dtype=torch.float32).T.contiguous()
    return known._replace(times=torch.tensor(ENTRY_TIMES, dtype=torch.float64), errors=table)
