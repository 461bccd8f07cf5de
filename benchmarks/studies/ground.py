"""What the studies stand on: clusters of Fashion-MNIST, a classifier's features, distances."""

import argparse
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll import config
from atoll.data import encode, partition
from atoll.data.store import Reader
from atoll.evaluate.distances import frechet as frechet
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.runs import Run, replacing, write_json

CLUSTERS = 8
NETWORK = {"width": 64, "depth": 4, "heads": 4, "patch": [4, 4]}
SMALL = {"width": 48, "depth": 2, "heads": 4, "patch": [4, 4]}
TRAINING = {"lr": 2e-3, "warmup": 30, "ema": 0.99, "log_every": 50, "save_every": 1_000_000}


def options(doc: str | None, *, weighting: bool = False) -> argparse.Namespace:
    """The options of every study."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--data", default="fashion-5k", help="what recipes call data.source")
    parser.add_argument("--out", type=Path, default=Path("studies"), help="where runs and results are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a minute, to see that all of it works")
    parser.add_argument("--table", action="store_true", help="only the table of all seeds that are finished")
    if weighting:
        choices = ("uniform", "velocity", "min-snr")
        parser.add_argument("--weighting", choices=choices, default="uniform", help="of noise experts' loss")
    return parser.parse_args()


class Ground:
    """The data of a study, prepared once for all its seeds."""

    def __init__(self, source: str, out: Path, *, classifier_steps: int) -> None:
        self.source, self.out = source, out
        out.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(out / "prepare.lock"):
            self.base = self.run("data", seed=0)
            encode.prepare(self.base)
            partition.partition(self.base)
            self.classifier = self._classifier(classifier_steps)
        self.reference = {k: self.features(self.real(2000, k)) for k in range(CLUSTERS)}

    def run(self, name: str, *, seed: int, expert: Mapping[str, Any] | None = None, steps: int = 0) -> Run:
        """A run under this study with the shared data; `steps` are the router's."""
        tree = {
            "name": name,
            "seed": seed,
            "data": {"source": self.source},
            "partition": {"clusters": CLUSTERS, "fine": 128},
            "expert": {**NETWORK, **TRAINING, "steps": 1, **(expert or {})},
            "router": {**SMALL, **TRAINING, "decay": "cosine", "steps": max(steps, 1), "batch": 32},
        }
        run = Run(self.out / "runs" / name, config.validate(tree, name))
        write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
        for stage in ("data", "partition"):
            if name != "data" and not (run.path / stage).is_symlink():
                (run.path / stage).symlink_to((self.base.path / stage).resolve())
        return run

    def reader(self, batch: int, seed: int, cluster: int | None = None) -> Reader:
        """Real samples, of all clusters or of one."""
        indices = range(CLUSTERS) if cluster is None else [cluster]
        return Reader([self.base.cluster(k) for k in indices], batch, seed)

    def real(self, num: int, cluster: int) -> Tensor:
        """Real samples of one cluster."""
        batches = self.reader(min(num, 500), 7, cluster).batches()
        try:
            return torch.cat([next(batches).x_0 for _ in range(-(-num // 500))])[:num]
        finally:
            batches.close()

    @torch.inference_mode()
    def features(self, x: Tensor) -> Tensor:
        """What the classifier makes of samples before its last layer."""
        body = self.classifier[:-1]
        return torch.cat([body(part) for part in x.clamp(-1, 1).split(500)]).double()

    def _classifier(self, steps: int) -> nn.Sequential:
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 49, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
        path = self.out / f"classifier-{steps}.safetensors"
        if path.is_file():
            network.load_state_dict(read_tensors(path))
            return network.eval()
        optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
        batches = self.reader(64, 0).batches()
        right = []
        for _ in range(steps):
            batch = next(batches)
            assert batch.label is not None
            logits = network(batch.x_0)
            right.append((logits.argmax(1) == batch.label).float().mean().item())
            torch.autograd.backward(F.cross_entropy(logits, batch.label))
            optimiser.step()
            optimiser.zero_grad()
        batches.close()
        write_json(self.out / "classifier.json", {"steps": steps, "accuracy": sum(right[-100:]) / 100})
        with replacing(path) as beside:
            write_tensors(beside, dict(network.state_dict()))
        return network.eval()


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Seeds may run side by side, but their common ground is laid once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def spread(features: Tensor) -> float:
    """The mean distance of two samples: how diverse a set is."""
    return float(torch.pdist(features[:500]).mean())


def cached(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors from a file, made first if it is not there."""
    if not path.is_file():
        with replacing(path) as beside:
            write_tensors(beside, make())
    return read_tensors(path)


def finished(out: Path, study: str) -> list[dict[str, Any]]:
    """The results of all seeds of a study."""
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"{study}-*.json"))]


def mean_and_error(values: list[float]) -> str:
    """Mean and standard error, as text."""
    tensor = torch.tensor(values, dtype=torch.float64)
    if len(values) < 2:
        return f"{tensor.mean():.2f}"
    return f"{tensor.mean():.2f} ± {tensor.std() / len(values) ** 0.5:.2f}"
