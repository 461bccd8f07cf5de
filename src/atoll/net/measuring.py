"""The minute's benchmark: what a machine can do, measured by a process with torch; a worker has none."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from atoll import threads
from atoll.net.limits import Limits
from atoll.net.protocol import Capabilities, Numerics
from atoll.runs import write_json

SIDE = 768
"""Rows and columns of the matrices: large enough for all cores, small enough for any machine."""
SECONDS = 20.0
WEEK = 7 * 86400.0
FILE = "measured.json"
"""In a worker's folder: what was found the last time."""


def capabilities(folder: Path, limits: Limits, now: float, seconds: float = SECONDS) -> Capabilities:
    """What this machine can do with what its owner allows; measured anew after a week or other limits."""
    path = folder / FILE
    if not is_known(folder, limits, now):
        facts = _measure(limits.variables(), seconds)
        write_json(path, {**facts, "settings": _lent(limits.variables()), "date": now})
    facts = _read(path)
    return Capabilities(
        memory=int(facts["memory"]),
        disk=limits.room(folder, shutil.disk_usage(folder).free),
        gpu=bool(facts["gpu"]),
        speed=float(facts["speed"]),
        up=limits.mbit,
        down=limits.mbit,
        numerics=Numerics.model_validate(facts["numerics"]),
    )


def is_known(folder: Path, limits: Limits, now: float) -> bool:
    """Whether it was measured lately, with the same limits."""
    facts = _read(folder / FILE)
    recent = 0 <= now - float(facts.get("date", 0.0)) < WEEK
    return recent and _lent(facts.get("settings", {})) == _lent(limits.variables())


def _lent(variables: dict[str, str]) -> dict[str, str]:
    """Cores and GPUs; how threads wait depends on who started us, and is no matter."""
    return {name: value for name, value in variables.items() if name not in threads.WAITING}


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _measure(settings: dict[str, str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "atoll.net.measuring", str(seconds)]
    answer = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, and say so in one line."""
    import torch  # noqa: PLC0415 - only this process needs it

    from atoll.runs.graph import resolve  # noqa: PLC0415

    seconds = float(sys.argv[1])
    device = resolve("atoll.devices:best")()
    left, right = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))
    count, since = 0, time.perf_counter()
    while (passed := time.perf_counter() - since) < seconds or not count:
        left = (left @ right) / SIDE
        float(left[0, 0])  # waits for the device
        count += 1
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else _memory()
    facts = {
        "speed": count * 2 * SIDE**3 / passed,
        "memory": memory,
        "gpu": device.type != "cpu",
        "numerics": resolve("atoll.net.work:arithmetic_here")().model_dump(mode="json"),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    main()
