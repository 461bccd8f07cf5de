"""How long `atoll --help` takes, against Python with torch imported, which is what it avoids."""

import argparse
import json
import subprocess
import sys
import time


def seconds(arguments: list[str], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        since = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        best = min(best, time.perf_counter() - since)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    help_seconds = seconds(["-m", "atoll", "--help"], 5)
    torch_seconds = seconds(["-c", "import torch"], 3)
    found = {
        "benchmark": "startup",
        "ratios": {"`import torch`, in time to answer `atoll --help`": torch_seconds / help_seconds},
        "detail": {"atoll --help, seconds": help_seconds, "import torch, seconds": torch_seconds},
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(f"atoll --help {help_seconds:.2f} s, import torch {torch_seconds:.2f} s")


if __name__ == "__main__":
    main()
