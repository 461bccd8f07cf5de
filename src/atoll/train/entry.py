"""What an expert's samples are by two moments, and from which noise on these tell as much as the expert."""

import torch

from atoll import devices
from atoll.config import ENTRY_RANK, ENTRY_ROWS, ENTRY_SAMPLES, ENTRY_TIMES, ExpertConfig
from atoll.flow import gaussian
from atoll.models import checkpoint, entry
from atoll.models.entry import Entry
from atoll.models.expert import as_expert
from atoll.runs import Stage, replacing
from atoll.train import moments
from atoll.train.moments import Trial


def write(
    stage: Stage, cluster: Stage, config: ExpertConfig, blueprint: checkpoint.Blueprint, seed: int
) -> list[str]:
    """Measure an expert whose files are written, if that is asked for, and write it beside them."""
    if not config.entry:
        return []
    device = devices.best()
    network, _ = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device)
    known, judged = moments.samples(cluster, ENTRY_SAMPLES, ENTRY_RANK, seed, device)
    trial = Trial(as_expert(network, blueprint.objective), judged, ENTRY_ROWS, seed, device)
    with replacing(stage.path / entry.FILE) as beside:
        entry.write(beside, _measured(trial, known))
    return [entry.FILE]


@torch.inference_mode()
def _measured(trial: Trial, known: gaussian.Gaussian) -> Entry:
    errors = []
    for time in ENTRY_TIMES:
        x_t, t, predicted = trial.at(time)
        own, closed = predicted, gaussian.velocity(known, x_t, t)
        errors.append([(trial.target - each).double().square().mean().cpu() for each in (own, closed)])
    table = torch.tensor(errors, dtype=torch.float32).T.contiguous()
    return Entry(known, torch.tensor(ENTRY_TIMES, dtype=torch.float64), table)
