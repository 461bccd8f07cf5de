"""What this machine has, and what it lacks."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil

from atoll import threads
from atoll.config import LaunchConfig
from atoll.launch import machine
from atoll.runs import runs_folder


def examine() -> dict[str, str]:
    """Facts that decide what runs here and how fast, in the order in which a person would ask."""
    import torch  # noqa: PLC0415 - slow to import

    return {
        "atoll": importlib.metadata.version("atoll"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": _device(),
        "cores": _cores(),
        "threads": _threads(),
        "memory": _memory(),
        "disk": _disk(),
        "extra hf": _extra(["diffusers", "transformers", "datasets"]),
        "extra ray": _extra(["ray"]),
        "torchvision": _torchvision(),
    }


def _device() -> str:
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"cuda: {', '.join(names)}"
    if torch.backends.mps.is_available():
        return "mps"
    return f"cpu ({torch.backends.cpu.get_cpu_capability()}); no GPU found"


def _cores() -> str:
    """Cores that may be kept busy, and why they are fewer than the machine has."""
    reasons = []
    if threads.allowed() < (os.cpu_count() or 1):
        reasons.append(f"affinity allows {threads.allowed()} of {os.cpu_count()}")
    limit = threads.quota()
    if limit is not None:
        reasons.append(f"cgroup grants the time of {limit:g}")
    return f"{threads.cores()}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _threads() -> str:
    """What jobs would get by default, and which variables of the environment decide it."""
    small, large = (machine.share(1, LaunchConfig(), useful).threads for useful in (1, threads.cores()))
    at_once = machine.share(threads.cores(), LaunchConfig()).at_once
    variables = {name: os.environ.get(name) for name in (*threads.COUNTS, *threads.WAITING)}
    own = [
        f"{name}={value}"
        for name, value in variables.items()
        if value not in (None, threads.WAITING.get(name))
    ]
    known = ", ".join(own) or "no OMP variable set"
    return f"{small} for a small network, {large} for a large one, {at_once} jobs at once ({known})"


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{size / 2**30:.0f} GiB"


def _disk() -> str:
    folder = runs_folder()
    place = folder if folder.exists() else folder.absolute().parent
    return f"{shutil.disk_usage(place).free / 2**30:.0f} GiB free for {folder}"


def _extra(modules: list[str]) -> str:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"missing {', '.join(missing)}" if missing else "installed"


def _torchvision() -> str:
    if importlib.util.find_spec("torchvision") is None:
        return "absent, as it should be"
    return "installed: Atoll does not need it, and next to a CPU build of torch it breaks transformers"
