"""What an expert's samples are by two moments, and from which noise on these tell as much as the expert."""

import torch

from atoll import devices
from atoll.config import ENTRY_RANK, ENTRY_ROWS, ENTRY_SAMPLES, ENTRY_TIMES, ExpertConfig
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
    known, judged = trials.samples(cluster, ENTRY_SAMPLES, ENTRY_RANK, seed, device)
    trial = Trial(expert, blueprint, judged, ENTRY_ROWS, seed)
    with replacing(stage.path / entry.FILE) as beside:
        entry.write(beside, _measured(trial, known))
    return [entry.FILE]


@torch.inference_mode()
def _measured(trial: Trial, known: gaussian.Gaussian) -> Entry:
    errors = []
    for time in ENTRY_TIMES:
        x_t, t, predicted = trial.at(time)
        answers = predicted, gaussian.velocity(known, x_t, t)
        errors.append([(trial.target - each).double().square().mean().cpu() for each in answers])
    table = torch.tensor(errors, dtype=torch.float32).T.contiguous()
    return Entry(known, torch.tensor(ENTRY_TIMES, dtype=torch.float64), table)
