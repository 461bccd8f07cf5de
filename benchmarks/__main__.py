"""Run every benchmark and end with one table of ratios: `make bench`."""

import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    rows = []
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        print(f"{path.stem} …", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", f"benchmarks.{path.stem}", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            rows.append((path.stem, "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1], ""))
            continue
        found = json.loads(done.stdout)
        rows += [(path.stem, what, f"{ratio:.2f}") for what, ratio in found["ratios"].items()]
        print(json.dumps(found["detail"], indent=2), file=sys.stderr)
    print(f"{'benchmark':16}{'against (above 1: Atoll is ahead)':64}{'ratio':>8}")
    for name, what, ratio in rows:
        print(f"{name:16}{what:64}{ratio:>8}")


if __name__ == "__main__":
    main()
