"""Whether bfloat16 trains like float32: one expert of the demo, against the noise between two seeds.

Run as `python -m benchmarks.studies.precision`; slow where the CPU has no units for bfloat16.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "fashion.toml"
RUNS = {
    "float32": ("expert.precision=float32",),
    "float32, another seed": ("expert.precision=float32", "seed=1"),
    "bfloat16": ("expert.precision=bfloat16",),
}


def curves(steps: int) -> dict[str, list[float]]:
    """The loss over steps of each; all on the same cluster, that of seed 0."""
    from atoll import config
    from atoll.data import encode, partition
    from atoll.runs import Run, read_lines
    from atoll.train import jobs

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        shared = Run(Path(folder) / "shared", config.load(RECIPE))
        shared.path.mkdir()
        encode.prepare(shared)
        partition.partition(shared)
        for name, settings in RUNS.items():
            overrides = [*settings, f"expert.steps={steps}", f"expert.log_every={max(1, steps // 14)}"]
            run = Run(
                Path(folder) / name.replace(", ", "-").replace(" ", "-"), config.load(RECIPE, overrides)
            )
            run.path.mkdir()
            for stage in ("data", "partition"):
                (run.path / stage).symlink_to(shared.path / stage)
            trained = jobs.expert(run, 0)
            found[name] = [line["loss"] for line in read_lines(trained.path / "metrics.jsonl")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=700)
    options = parser.parse_args()
    found = curves(options.steps)
    exact, other, half = (found[name] for name in RUNS)
    tail = max(1, len(exact) // 2)
    noise = statistics.fmean(abs(a - b) for a, b in zip(exact[-tail:], other[-tail:], strict=True))
    gap = statistics.fmean(abs(a - b) for a, b in zip(exact[-tail:], half[-tail:], strict=True))
    answer = {
        "study": "precision",
        "curves": found,
        "mean gap of bfloat16 to float32, second half": gap,
        "mean gap between two seeds, second half": noise,
        "agrees within noise": gap <= noise,
    }
    print(json.dumps(answer, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
