"""How well, and for how much, `atoll credit --audit` knows what parts are paid for: epoch after epoch.

    python -m benchmarks.studies.audits RUN --held-out DATA [--epochs 20] [--base moments] [--budget 0.02]

DATA are samples that the run has not seen, as data.source names them. Each epoch draws other rows of them:
the scatter of values over epochs is their true error, which the errors that audits claim must be.
"""

import argparse
import json
from pathlib import Path

import torch

from atoll.evaluate import credit, held_out
from atoll.evaluate.intervals import NORMAL
from atoll.runs import Run
from benchmarks.studies.credit import unseen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--base", default="moments")
    parser.add_argument("--budget", type=float, default=0.02)
    options = parser.parse_args()
    run = Run.open(options.run)
    held = held_out.Held(unseen(run, options.held_out, 10_000), True)
    settings = [f"credit.audit_base={options.base}", f"credit.budget={options.budget}"]
    records = [
        credit.audit(run.changed([*settings, f"credit.epoch={epoch}"]), held=held)
        for epoch in range(options.epochs)
    ]
    parts = [[part["audited"] for part in record["parts"]] for record in records]
    values = torch.tensor([[one["value"] for one in row] for row in parts]).double()
    errors = torch.tensor(
        [[(one["high"] - one["low"]) / (2 * NORMAL) for one in row] for row in parts]
    ).double()
    answer = {
        "true relative error": (values.std(0) / values.mean(0)).tolist() if len(records) > 1 else None,
        "claimed relative error": (errors.square().mean(0).sqrt() / values.mean(0)).tolist(),
        "of one training": [record["cost"]["of_one_training"] for record in records],
        "rows": [record["rows"] for record in records],
    }
    print(json.dumps({"study": "audits", "run": run.config.name, **answer}, indent=1))


if __name__ == "__main__":
    main()
