"""Adapters on one base: against the base itself, peft with `set_adapter` per group, and eight full experts.

Networks have random weights: what is measured is time and memory, not pictures. All is measured in one run,
by turns, and the best of each counts. Memory is that of processes of their own, beyond what one takes that
has loaded nothing. `--small` only shows that everything runs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.config import AdapterSettings, NetworkConfig, SampleConfig
from atoll.models import adapter, checkpoint
from atoll.models.checkpoint import Adaptation, Blueprint
from atoll.models.dit import product
from atoll.models.router import Router
from atoll.runs import Stage
from atoll.runs.records import ExpertContents
from atoll.sampling import building
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from atoll.train import jobs
from benchmarks._memory import peak_memory
from benchmarks._shown import show

SHAPE = (1, 28, 28)
FAST = NetworkConfig(width=256, depth=4, heads=4, patch=(4, 4))
"""Of what is timed."""
LARGE = NetworkConfig(width=768, depth=6, heads=12, patch=(4, 4))
"""Half of DiT-B, of what memory and swaps are measured with."""
ROUTER = NetworkConfig(width=64, depth=2, heads=2, patch=(4, 4))
"""Of 2 % of an expert's FLOPs."""
ADAPTER = AdapterSettings(rank=4)
EXPERTS, MANY, BATCH, STEPS, REPEATS, SWAPS = 8, 64, 32, 1, 2, 7


def awake(network: nn.Module, seed: int) -> nn.Module:
    """Random weights everywhere."""
    g = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g) * 0.05
    return network.eval().requires_grad_(False)


def blueprint(network: NetworkConfig) -> Blueprint:
    return Blueprint(role="expert", network=network, shape=SHAPE)


def write(folder: Path, about: Blueprint, tensors: dict[str, Tensor]) -> Stage:
    """A finished expert's folder."""
    stage: Stage = Stage(folder)
    stage.begin({})
    jobs.publish(stage, about, tensors, {}, ExpertContents)
    return stage


def write_full(folder: Path, network: NetworkConfig, seed: int) -> Stage:
    about = blueprint(network)
    return write(folder, about, dict(awake(about.build(), seed).state_dict()))


def write_adapters(folder: Path, base: Stage, network: NetworkConfig, count: int) -> list[Stage]:
    about = Adaptation(**ADAPTER.model_dump(), base=base.record.files[checkpoint.WEIGHTS])
    whole = blueprint(network).model_copy(update={"adapter": about})
    shapes = adapter.shapes(whole)
    stages = []
    for k in range(count):
        g = torch.Generator().manual_seed(1000 + k)
        tensors = {name: torch.randn(shape, generator=g) * 0.05 for name, shape in shapes.items()}
        stages.append(write(folder / f"{k:02d}", whole, tensors))
    return stages


def ensemble(stages: list[Stage], base: Stage) -> Ensemble:
    shares = [1 / len(stages)] * len(stages)
    parts = building.Parts(stages, shares, bases=[base])
    return building.build(parts, torch.device("cpu"), len(stages))


class EvenRouter(nn.Module):
    """Costs what a router costs, and sends as many samples to each expert, others as they move."""

    def __init__(self) -> None:
        super().__init__()
        self.network = awake(Router(ROUTER, SHAPE, EXPERTS), 99)

    def forward(self, x_t: Tensor, t: Tensor, condition: None = None) -> Tensor:
        """Logits by the signs of three values."""
        logits: Tensor = self.network(x_t, t, condition)
        bits = (x_t[:, 0, 0, :3] > 0).long() @ torch.tensor([1, 2, 4])
        return logits * 0 + 20 * nn.functional.one_hot(bits, EXPERTS)


class BySetAdapter(nn.Module):
    """One of peft's adapters: it is set, then the network is asked."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, *asked: Any) -> Tensor:
        """The answer of this adapter."""
        for module in self.network.modules():
            if hasattr(module, "lora_A"):
                module.set_adapter(self.name)
        answer: Tensor = self.network(*asked)
        return answer


def by_peft(base: Stage, stages: list[Stage]) -> list[nn.Module]:
    """The same adapters on one network by peft."""
    import peft

    network = checkpoint.load(base.path / checkpoint.WEIGHTS, base.path / checkpoint.CONFIG)[0]
    names = list(adapter.layers(network, ADAPTER))
    config = peft.LoraConfig(r=ADAPTER.rank, lora_alpha=ADAPTER.rank, target_modules=names)
    for k, stage in enumerate(stages):
        network = peft.inject_adapter_in_model(config, network, adapter_name=f"a{k}")
        tensors = checkpoint.read_tensors(stage.path / checkpoint.WEIGHTS)
        for name in names:
            layer = network.get_submodule(name)
            layer.lora_A[f"a{k}"].weight.data = tensors[f"{name}.{adapter.A}"]
            layer.lora_B[f"a{k}"].weight.data = tensors[f"{name}.{adapter.B}"]
    network.eval().requires_grad_(False)
    return [BySetAdapter(network, f"a{k}") for k in range(len(stages))]


def timed(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of a core for each by turns, the best of several: other programs do not count."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(REPEATS):
        for name, ask in work.items():
            since = time.process_time()
            ask()
            best[name] = min(best[name], time.process_time() - since)
            print(f"{name}: {best[name]:.2f} s", file=sys.stderr, flush=True)
    return best


def speed(folder: Path) -> dict[str, float]:
    """Milliseconds per sample of each way."""
    base = write_full(folder / "base", FAST, 0)
    adapters = write_adapters(folder / "adapters", base, FAST, EXPERTS)
    full = [write_full(folder / "full" / f"{k:02d}", FAST, k + 1) for k in range(EXPERTS)]
    router, num = EvenRouter(), EXPERTS * BATCH
    ours, experts = (replace(ensemble(stages, base), router=router) for stages in (adapters, full))
    each = product(experts.experts[0], 1)
    theirs = Ensemble(by_peft(base, adapters), ours.priors, SHAPE, router, product=each)
    _check_alike(ours, theirs)
    samplers = {
        "base": (ensemble([base], base), "ancestral"),
        "adapters ancestral": (ours, "ancestral"),
        "adapters top-1": (ours, "top-1"),
        "peft ancestral": (theirs, "ancestral"),
        "peft top-1": (theirs, "top-1"),
        "full experts ancestral": (experts, "ancestral"),
        "full experts top-1": (experts, "top-1"),
    }
    settings = SampleConfig(batch=BATCH, steps=STEPS)
    sampled = {
        name: partial(Sampler(one, settings).sample, num, strategy=strategy)
        for name, (one, strategy) in samplers.items()
    }
    # One set adapter for all threads: peft's network cannot be asked by two at once.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = timed(sampled)
    few = _few_rows(ours, theirs)
    torch.set_num_threads(threads)
    return {**{name: 1000 * value / num for name, value in seconds.items()}, **few}


def _few_rows(ours: Ensemble, theirs: Ensemble) -> dict[str, float]:
    """Milliseconds per row of one step of a server: two rows of each adapter, together or group by group."""
    rows = 2 * EXPERTS
    weights = torch.eye(EXPERTS).repeat(2, 1)
    x_t, t = torch.randn(rows, *SHAPE), torch.rand(rows)
    with torch.inference_mode():
        seconds = timed(
            {
                "adapters, 2 rows each": lambda: ours.mixed(weights, x_t, t, None),
                "peft, 2 rows each": lambda: theirs.mixed(weights, x_t, t, None),
            }
        )
    return {name: 1000 * value / rows for name, value in seconds.items()}


def _check_alike(ours: Ensemble, theirs: Ensemble) -> None:
    """What is compared computes the same."""
    x_t, t = torch.randn(2, *SHAPE), torch.rand(2)
    with torch.inference_mode():
        for k in (0, EXPERTS - 1):
            torch.testing.assert_close(
                ours.experts[k](x_t, t, None), theirs.experts[k](x_t, t, None), rtol=1e-3, atol=1e-3
            )


def memory(folder: Path) -> dict[str, int]:
    """Bytes of each in a process of its own, beyond one that asks nobody."""
    base = write_full(folder / "base", LARGE, 0)
    write_adapters(folder / "adapters", base, LARGE, MANY)
    for k in range(EXPERTS):
        write_full(folder / "full" / f"{k:02d}", LARGE, k + 1)
    kinds = ("nothing", "base", "adapters", "full")
    peaks = {kind: _peak(kind, folder) for kind in kinds}
    return {kind: peaks[kind] - peaks["nothing"] for kind in kinds[1:]}


def _peak(kind: str, folder: Path) -> int:
    command = [sys.executable, "-m", "benchmarks.components", "--held", kind, "--folder", str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(printed.split()[-1])


def hold(kind: str, folder: Path) -> None:
    """Ask everybody about one row, so that all are in memory."""
    base: Stage = Stage(folder / "base")
    places: Iterable[Path] = {
        "base": [folder / "base"],
        "adapters": sorted((folder / "adapters").iterdir()),
        "full": sorted((folder / "full").iterdir()),
    }.get(kind, [])
    stages: list[Stage] = [Stage(place) for place in places]
    x_t, t = torch.zeros(1, *SHAPE), torch.zeros(1)
    with torch.inference_mode():
        if not stages:
            nn.functional.linear(torch.ones(64, 768), torch.ones(768, 768))
            return
        held = ensemble(stages, base)
        for k in range(len(stages)):
            held.experts[k](x_t, t, None)


def swaps(folder: Path) -> dict[str, float]:
    """Milliseconds until another part has taken the place of one and has answered for the first time."""
    base, adapters = Stage(folder / "base"), sorted((folder / "adapters").iterdir())
    live = ensemble([Stage(place) for place in adapters[:EXPERTS]], base)
    x_t, t = torch.zeros(1, *SHAPE), torch.zeros(1)
    seconds: dict[str, list[float]] = {"adapter": [], "expert": []}
    with torch.inference_mode():
        live.experts[0](x_t, t, None)
        for turn in range(SWAPS):
            for kind, place in (
                ("adapter", adapters[EXPERTS + turn % EXPERTS]),
                ("expert", folder / "full" / f"{turn % EXPERTS:02d}"),
            ):
                since = time.perf_counter()
                building.swap(live, 1, Stage(place))
                touched = live.experts[1]
                sum(float(value.sum()) for value in touched.parameters())  # mapped files are read when needed
                seconds[kind].append(time.perf_counter() - since)
    return {kind: 1000 * statistics.median(values) for kind, values in seconds.items()}


def resize() -> None:
    """Sizes that only show that everything runs."""
    global FAST, LARGE, BATCH, REPEATS, MANY, SWAPS
    FAST = LARGE = NetworkConfig(width=16, depth=1, heads=2, patch=(7, 7))
    BATCH, REPEATS, MANY, SWAPS = 2, 1, 2 * EXPERTS, 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--held", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.held:
        hold(options.held, options.folder)
        print(peak_memory())
        return
    if options.small:
        resize()
    with tempfile.TemporaryDirectory() as place:
        per_sample = speed(Path(place) / "speed")
        held = memory(Path(place) / "memory")
        swapped = swaps(Path(place) / "memory")
    base = per_sample["base"]
    ratios = {
        "the base, 8 adapters ancestral: time per sample (aim: 0.95)": base
        / per_sample["adapters ancestral"],
        "the base, 8 adapters top-1: time per sample (aim: 0.87)": base / per_sample["adapters top-1"],
        "peft with set_adapter, ancestral": per_sample["peft ancestral"] / per_sample["adapters ancestral"],
        "peft with set_adapter, top-1": per_sample["peft top-1"] / per_sample["adapters top-1"],
        "peft with set_adapter, 2 rows of each of 8": per_sample["peft, 2 rows each"]
        / per_sample["adapters, 2 rows each"],
        "eight full experts, ancestral": per_sample["full experts ancestral"]
        / per_sample["adapters ancestral"],
        "eight full experts, top-1": per_sample["full experts top-1"] / per_sample["adapters top-1"],
        "the base, 64 adapters: memory (aim: 0.67)": held["base"] / held["adapters"],
        "eight full experts, 64 adapters: memory": held["full"] / held["adapters"],
        "an expert is loaded, an adapter swapped (aim: 10)": swapped["expert"] / swapped["adapter"],
    }
    detail = {"ms per sample": per_sample, "bytes": held, "ms of a swap": swapped, "rank": ADAPTER.rank}
    show({"benchmark": "components", "ratios": ratios, "detail": detail}, options.json)


if __name__ == "__main__":
    main()
