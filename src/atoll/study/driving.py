"""A whole study: what its cells share is made first, then every training is a job, then all is told."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from atoll.launch import driver
from atoll.launch import engine as engines
from atoll.launch.driver import Screen
from atoll.launch.engine import Place
from atoll.study import cells as room
from atoll.study import results
from atoll.study import tuning as tuner
from atoll.study.cells import Workshop
from atoll.study.design import Study


def drive(study: Study, on: str, screen: Screen) -> dict[str, Any]:
    """Train and judge every cell that has no numbers yet; where the tables and pictures are."""
    engines.check(on)
    study, tuning = tuner.tuned(study, partial(_try, on, screen))
    shop = Workshop(study)
    with screen.bar() as progress:
        cells = shop.cells(progress)
        jobs = room.trainings(shop, cells)
        if jobs:
            room.prepare(shop, cells, progress)
    try:
        if jobs:
            place = Place(shop.folder, study.base_run.launch)
            with engines.opened(on, place) as engine, screen.table() as watch:
                driver.run_jobs(jobs, engine, watch)
    finally:
        written = results.write(shop, cells, tuning)
    return written


def _try(on: str, screen: Screen, trials: Sequence[tuner.Trial]) -> None:
    """Train and judge the trials of one round, as many at once as there is room for."""
    jobs = tuner.jobs(trials)
    if not jobs:
        return
    with screen.bar() as progress:
        for trial in trials:
            room.prepare(trial.shop, trial.cells, progress)
    shop = trials[0].shop
    place = Place(shop.folder, shop.study.base_run.launch)
    with engines.opened(on, place) as engine, screen.table() as watch:
        driver.run_jobs(jobs, engine, watch)
