"""Short waits between two looks, and little to measure on, in tests and in every process that they start.

What is waited for stays the same, and so do leases: who is dead is known by its process, and who is alive has
long enough to say so. So nothing depends on how busy the machine is.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

WAITS: dict[str, dict[str, float]] = {
    "atoll.storage.patience": {"FIRST_WAIT": 0.005, "LONGEST_WAIT": 0.05},
    "atoll.storage.leases": {"LONGEST_LOOK": 0.1},
    "atoll.launch.leased": {"POLL_SECONDS": 0.02, "PROGRESS_SECONDS": 0.2},
    "atoll.launch.ranks": {"POLL_SECONDS": 0.02},
    "atoll.launch.local": {"Local.seconds": 0.05},
    "atoll.launch.on_ray": {"POLL_SECONDS": 0.05, "METRICS_SECONDS": 0.5, "OnRay.seconds": 0.1},
    "atoll.launch.on_slurm": {"OnSlurm.seconds": 0.1},
}
"""By module: seconds under their names."""
LIGHT: dict[str, dict[str, float]] = {
    "atoll.train.jobs": {"BAND_SAMPLES": 32},  # every router that is trained is asked fifty times about them
    "atoll.train.moments": {"MOMENTS": 200, "MEASURED": 32},  # so are experts of noise
    "atoll.evaluate.classifier": {"STEPS": 60},
}
"""What is measured on fewer samples than people want, in every process alike."""
AFAR: dict[str, dict[str, float]] = {
    "atoll.net.policing": {
        "ROUNDS": 1 << 14
    },  # a beacon for four years takes seconds to begin, for days none
}
"""What lasts as long as a test needs it, in processes that tests start."""
FORGE = "ATOLL_TESTS_FORGE"
"""Names the address of who forks jobs."""
CUSTOMIZE = "from tests import hasty\nhasty.install()\n"
"""For `sitecustomize`, which Python imports before anything else."""


LATER: dict[str, Callable[[ModuleType], None]] = {}
"""What else becomes of modules when they are loaded."""


def hasten(module: ModuleType) -> None:
    for name, number in {**WAITS, **LIGHT, **AFAR}[module.__name__].items():
        owner, _, attribute = name.rpartition(".")
        setattr(getattr(module, owner) if owner else module, attribute, number)


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules as everybody else does, and changes some of them once they are loaded."""

    def find_spec(self, name, path=None, target=None):
        change = LATER.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if change else None
        if change and spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                change(module)

            spec.loader.exec_module = exec_module
        return spec


def inherit(warm: Any) -> None:
    """Who was given a parent for its jobs takes no other, whatever else is in their environment."""
    warm._fixed = lambda environment: {
        name: environment.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")
    }


def forge(process: Any) -> None:
    """Jobs of engines are forked as well, if there is somebody who does: see `tests.forge`."""
    if os.environ.get(FORGE):
        from tests import forge

        process.command = lambda spec, at_death: forge.command(process, spec, at_death)


def hold(loop: ModuleType) -> None:
    """Trainings wait where tests say: see `tests.holding`."""
    from tests import holding

    holding.install(loop)


def lighten() -> None:
    """In the process of the tests themselves, which have clocks of their own."""
    LATER.update(dict.fromkeys(LIGHT, hasten))
    sys.meta_path.insert(0, Finder())


def install() -> None:
    """For all that is imported from now on."""
    changes = {"atoll.launch.warm": inherit, "atoll.launch.process": forge, "atoll.train.loop": hold}
    LATER.update({**dict.fromkeys({**WAITS, **LIGHT, **AFAR}, hasten), **changes})
    sys.meta_path.insert(0, Finder())
