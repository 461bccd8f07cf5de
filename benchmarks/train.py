"""Training speed: the loop against diffusers' DiT at its best, and against the plain loop of reference code.

Every contender lives in a process of its own, since allocator, threads and compiled code are a process's;
they take a few steps in turn, and the best of each counts. All in the precision in which this machine
multiplies matrices fastest, except the plain loop, which is float32 as the papers' reference code ships it.
"""

import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Step = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """What is trained."""

    width: int
    depth: int
    heads: int
    patch: int
    shape: tuple[int, ...]
    threads: int
    batch: int = 16
    classes: int = 1000


SIZES = {
    "middle": Size(384, 6, 6, 2, (4, 32, 32), len(os.sched_getaffinity(0))),
    "demo": Size(96, 4, 4, 4, (1, 28, 28), 1),
}


def network(size: Size, activation: str) -> Any:
    from atoll.config import NetworkConfig

    return NetworkConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        patch=(size.patch, size.patch),
        activation=activation,
    )


def atoll_step(size: Size, precision: str, compiled: bool) -> Step:
    """The loop as it is: everything between two batches."""
    import torch

    from atoll.config import TrainConfig
    from atoll.data.store import Batch
    from atoll.flow import draws, path
    from atoll.models import conditions
    from atoll.models.dit import DiT
    from atoll.runs import Stage
    from atoll.train import hardware, loop

    def loss(model: Any, batch: Batch, drawn: draws.TrainingDraws) -> torch.Tensor:
        assert batch.label is not None
        told = conditions.hide(batch.label, drawn.dropped, size.classes)
        predicted = model(path.point(batch.x_0, drawn.noise, drawn.t), drawn.t, told)
        return (predicted.float() - path.velocity(batch.x_0, drawn.noise)).square().flatten(1).mean(1)

    config = TrainConfig(batch=size.batch, precision=precision)
    model = DiT(network(size, "gelu"), size.shape, "class", size.classes)
    task = loop.Task("bench", model, loss, None, config, 0, 0.1, Stage(None))
    steps = loop.Steps(task, torch.device("cpu"))
    if compiled:
        hardware.compile_blocks(steps.model)
    window = loop.Window(0)

    def step() -> None:
        x_0, label = data(size)
        window.add(steps.take(Batch(x_0, label, label)))
        if len(window.taken) == config.log_every:
            window.check(task)
            window._open(steps.state.step)

    return step


def diffusers_step(size: Size, precision: str, compiled: bool) -> Step:
    """Diffusers' DiT in a good loop: fused AdamW, foreach average, no waiting for the loss."""
    import torch
    from diffusers import DiTTransformer2DModel

    model: Any = DiTTransformer2DModel(
        num_attention_heads=size.heads,
        attention_head_dim=size.width // size.heads,
        in_channels=size.shape[0],
        out_channels=size.shape[0],
        num_layers=size.depth,
        sample_size=size.shape[1],
        patch_size=size.patch,
        num_embeds_ada_norm=size.classes,
    )
    called = torch.compile(model) if compiled else model
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    average = [value.detach().clone() for value in parameters]

    def step() -> None:
        x_0, label = data(size)
        noise, t = torch.randn_like(x_0), torch.rand(size.batch)
        with cast(precision):
            predicted = called(
                x_0.lerp(noise, t.view(-1, 1, 1, 1)), timestep=1000 * t, class_labels=label
            ).sample
        loss = (predicted.float() - (noise - x_0)).square().mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        torch._foreach_lerp_(average, [value.detach() for value in parameters], 1e-4)

    return step


def plain_step(size: Size, precision: str, compiled: bool) -> Step:
    """DiT's train.py: tanh-GELU, AdamW as it comes, average weight by weight, the loss read each step."""
    import torch

    from atoll.models.dit import DiT

    model = DiT(network(size, "gelu-tanh"), size.shape, "class", size.classes)
    averaged = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    total = 0.0

    def step() -> None:
        nonlocal total
        x_0, label = data(size)
        noise, t = torch.randn_like(x_0), torch.rand(size.batch)
        predicted = model(x_0.lerp(noise, t.view(-1, 1, 1, 1)), t, label)
        loss = (predicted - (noise - x_0)).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for average, value in zip(averaged.parameters(), model.parameters(), strict=True):
                average.mul_(0.9999).add_(value, alpha=1e-4)
        total += loss.item()

    return step


CONTENDERS = {"atoll": atoll_step, "diffusers": diffusers_step, "plain": plain_step}


def data(size: Size) -> Any:
    import torch

    return torch.randn(size.batch, *size.shape), torch.randint(size.classes, (size.batch,))


def cast(precision: str) -> contextlib.AbstractContextManager[Any]:
    import torch

    if precision == "bfloat16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def peak(precision: str) -> float:
    """GFLOP/s of a large matrix product, best of many."""
    import torch

    side = 1024
    a = torch.randn(side, side, dtype=getattr(torch, precision))
    best = float("inf")
    for _ in range(12):
        since = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - since)
    return 2 * side**3 / best / 1e9


def work(name: str, size: Size, precision: str, compiled: bool) -> None:
    """A contender: a line in, so many steps, seconds of the best one out; `peak` measures matrix products."""
    import torch

    torch.set_num_threads(size.threads)
    torch.manual_seed(0)
    step = CONTENDERS[name](size, precision, compiled) if name != "peak" else None
    for line in sys.stdin:
        if step is None:
            print(json.dumps(peak(line.strip())), flush=True)
            continue
        best = float("inf")
        for _ in range(int(line)):
            since = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - since)
        print(json.dumps(best), flush=True)


class Worker:
    """A process that takes steps when told."""

    def __init__(self, name: str, size: str, precision: str = "float32", compiled: bool = False) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.train",
            "--worker",
            name,
            size,
            precision,
            str(int(compiled)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(SIZES[size].threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.best = float("inf")

    def ask(self, line: str) -> float:
        """One line out, one number back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("a contender failed; its reason is above")
        return float(json.loads(answer))

    def measure(self, steps: int) -> None:
        """Take steps and remember the best."""
        self.best = min(self.best, self.ask(str(steps)))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def race(
    size: str, contenders: dict[str, tuple[str, str, bool]], rounds: int, steps: int
) -> dict[str, float]:
    """Samples per second of each, measured in turn after a warm-up; one that cannot run is left out."""
    workers = {label: Worker(name, size, *how) for label, (name, *how) in contenders.items()}
    try:
        for label in list(workers):
            try:
                workers[label].ask("2")
            except RuntimeError:
                workers.pop(label).close()
        for _ in range(rounds):
            for worker in workers.values():
                worker.measure(steps)
    finally:
        for worker in workers.values():
            worker.close()
    return {label: SIZES[size].batch / worker.best for label, worker in workers.items()}


def flops(size: Size) -> float:
    """Of one sample, forward and backward, in matrix products."""
    from atoll import plan

    return 3 * plan.forward_flops(plan.Network(network(size, "gelu"), size.shape, "class", size.classes))


def measure(rounds: int, compiled: bool) -> dict[str, Any]:
    meter = Worker("peak", "middle")
    peaks = {precision: meter.ask(precision) for precision in ("float32", "bfloat16")}
    best = max(peaks, key=lambda precision: peaks[precision])
    contenders = {"plain float32": ("plain", "float32", False)}
    for name in ("atoll", "diffusers"):
        contenders[f"{name} eager"] = (name, best, False)
        if compiled:
            contenders[f"{name} compiled"] = (name, best, True)
    middle = race("middle", contenders, rounds, 2)
    peaks[best] = max(peaks[best], meter.ask(best))
    meter.close()
    demo = race("demo", {name: (name, "float32", False) for name in ("atoll", "plain")}, 4 * rounds, 10)
    ours, theirs = (
        max(rate for label, rate in middle.items() if label.startswith(name))
        for name in ("atoll", "diffusers")
    )
    achieved = ours * flops(SIZES["middle"]) / 1e9
    bfloat16_pays = peaks["bfloat16"] > peaks["float32"]
    return {
        "benchmark": "train",
        "ratios": {
            f"diffusers' DiT, same loop, its best setting ({best})": ours / theirs,
            "the plain float32 loop of reference code": ours / middle["plain float32"],
            "the plain loop at demo size, one thread": demo["atoll"] / demo["plain"],
        },
        "detail": {
            "samples per second, width 384, depth 6, 256 tokens, batch 16": middle,
            "samples per second, width 96, depth 4, 49 tokens, batch 16": demo,
            "threads": SIZES["middle"].threads,
            "GFLOP/s of matrix products": peaks,
            "precision": best,
            "what was found": (
                "bfloat16 pays here"
                if bfloat16_pays
                else "bfloat16 does not pay here: all train in float32, also the plain loop's rivals"
            ),
            "GFLOP per sample": flops(SIZES["middle"]) / 1e9,
            "GFLOP/s achieved": achieved,
            "share of the matrix peak": achieved / peaks[best],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=6, help="how often each contender is asked")
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, size, precision, compiled = options.worker
        work(name, SIZES[size], precision, compiled == "1")
        return
    found = measure(options.rounds, not options.eager)
    if options.json:
        print(json.dumps(found))
        return
    print(json.dumps(found["detail"], indent=2))
    for what, ratio in found["ratios"].items():
        print(f"{ratio:.2f}x  {what}")


if __name__ == "__main__":
    main()
